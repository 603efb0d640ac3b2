"""Start a user's real run as it is, with a hook beside that watches it, and wait for its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_rlregress.commands.rehearse import events
from pytest_rlregress.commands.rehearse.process import CommandEnd, add_hook
from pytest_rlregress.util.ends import Ended


def make_environment(folder: Path, steps: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment, with the hook first on Python's path and four variables that only it reads."""
    return {**add_hook(folder, steps, environ), events.AS_IS_VARIABLE: "1"}


def run(
    command: Sequence[str], folder: Path, steps: int, say: Callable[[str], None], is_quiet: bool = False
) -> CommandEnd:
    """Run a command to its end, in this terminal; Ctrl-C and SIGTERM are the command's, and its end is waited for.

    Args:
        command: The user's words; the first is found.
        folder: Of the record.
        steps: After so many the trainer is asked to stop.
        say: Is told what happens, a line each.
        is_quiet: The command writes to stderr alone: stdout is for a document.
    """
    begun = time.monotonic()
    output = sys.stderr.fileno() if is_quiet else None
    process = subprocess.Popen(list(command), env=make_environment(folder, steps, os.environ), stdout=output)
    is_over = threading.Event()
    watching = threading.Thread(target=_tell_steps, args=(folder, say, begun, is_over), daemon=True)
    watching.start()
    try:
        code = _wait(process)
    finally:
        is_over.set()
        watching.join()
    return CommandEnd(code, time.monotonic() - begun, 0, 0)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a command; a signal is handed on to it, but for a Ctrl-C that the terminal gives to both."""
    while True:
        try:
            return process.wait()
        except Ended as end:
            process.send_signal(end.exit_code - 128)
        except KeyboardInterrupt:
            if not _is_in_foreground():
                process.send_signal(signal.SIGINT)


def _is_in_foreground() -> bool:
    with suppress(OSError):
        return os.tcgetpgrp(0) == os.getpgrp()
    return False


def _tell_steps(folder: Path, say: Callable[[str], None], begun: float, is_over: threading.Event) -> None:
    told = 0
    while not is_over.wait(1.0):
        found = list(events.read(folder))
        for event in found[told:]:
            if event["kind"] == "step":
                say(f"step {event['record']['number']} recorded after {time.monotonic() - begun:.0f} s")
            elif event["kind"] == "unrehearsed":
                say(f"not watched: {event['what']}: {event['why']}")
            elif event["kind"] == "observer":
                say(f"an error of the watching itself, and the run goes on: {event['trace'].strip().splitlines()[-1]}")
        told = len(found)
