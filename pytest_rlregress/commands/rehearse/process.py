"""Start a command so that its processes are rehearsed, wait for it, and leave nothing of it behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest_rlregress
from pytest_rlregress.commands.rehearse import events, hook
from pytest_rlregress.fixtures.verl_process import remove_dead_sockets
from pytest_rlregress.util.processes import Process, become_subreaper, descendants, end_with_parent
from pytest_rlregress.util.shared_memory import SharedMemoryWatch

LOG = "command.log"
#: Variables of a rehearsed command: the engine in the trainer's process, and nothing sent to a tracker.
VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "WANDB_MODE": "disabled",
    "TRACKIO_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "ACCELERATE_MIXED_PRECISION": "no",
}
#: What a shell script isn't let do: it is written down, and taken as done.
LEFT_OUT = (
    *(
        "pip",
        "pip3",
        "uv",
        "conda",
        "apt",
        "apt-get",
        "rm",
        "mv",
        "git",
        "wget",
        "curl",
        "aws",
        "gsutil",
        "rsync",
        "scp",
    ),
    *("ssh", "sbatch", "srun", "ray", "docker", "hf", "huggingface-cli", "wandb", "kill", "pkill", "killall", "sudo"),
)
_SHELLS = ("bash", "sh", "dash", "zsh")
_STAND_IN = """#!/bin/sh
printf '%s\\n' "${0##*/} $*" >> "$RLREGRESS_REHEARSAL/left-out"
"""


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        code: Its exit code, -N for signal N; None if nothing happened in it for too long.
        seconds: From its start to its end.
        memory: The most that its processes held together, in bytes.
        left: Command lines of processes that were still there, which were ended.
    """

    code: int | None
    seconds: float
    memory: int
    left: int


def add_hook(folder: Path, steps: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the hook first on Python's path, and the variables that it reads."""
    entry = folder / "entry"
    entry.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(hook.__file__, entry / "sitecustomize.py")
    before = environ.get("PYTHONPATH")
    return {
        **environ,
        "PYTHONPATH": f"{entry}{os.pathsep}{before}" if before else str(entry),
        "RLREGRESS_PACKAGE": str(Path(pytest_rlregress.__file__).parent),
        events.FOLDER_VARIABLE: str(folder),
        events.STEPS_VARIABLE: str(steps),
    }


def make_environment(
    folder: Path, steps: int, environ: Mapping[str, str], is_shell: bool = False, scratch: Path | None = None
) -> dict[str, str]:
    """Return a command's environment with the hook first on its path.

    A shell's ``PATH`` begins with stand-ins for what would change something; ``scratch`` gets temporary files.
    """
    found = {**add_hook(folder, steps, environ), **VARIABLES, "WANDB_DIR": str(folder)}
    found.pop("VLLM_CPU_KVCACHE_SPACE", None)
    if scratch:
        scratch.mkdir(exist_ok=True)
        found["TMPDIR"] = str(scratch)
    if is_shell:
        programs = folder / "programs"
        programs.mkdir(exist_ok=True)
        for name in LEFT_OUT:
            (programs / name).write_text(_STAND_IN, encoding="utf-8")
            (programs / name).chmod(0o755)
        found["PATH"] = f"{programs}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return found


def read_left_out(folder: Path) -> list[str]:
    """Return the commands that a shell script wasn't let start."""
    file = folder / "left-out"
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []


def run(
    command: Sequence[str],
    folder: Path,
    steps: int,
    patience: float,
    say: Callable[[str], None] = lambda line: None,
    scratch: Path | None = None,
) -> CommandEnd:
    """Run a command to its end, its output into the folder's log.

    Args:
        command: The user's words; the first is found.
        folder: Of the rehearsal; exists.
        steps: Optimizer steps.
        patience: Seconds without output or event after which it is ended.
        say: Is told what happens, a line each.
        scratch: The command's folder for temporary files.
    """
    begun, memory = time.monotonic(), 0
    become_subreaper()
    shared_memory, family = SharedMemoryWatch(), frozenset[Process]()
    log = folder / LOG
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            env=make_environment(folder, steps, os.environ, Path(command[0]).name in _SHELLS, scratch),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGKILL, os.getpid()),
        )
    code: int | None = None
    told, seen, since = 0, -1, time.monotonic()
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(1.0)
                break
            shared_memory.look()
            family |= descendants(process.pid)
            memory = max(memory, _sum_memory(process.pid))
            size = sum(file.stat().st_size for file in (log, folder / events.FILE) if file.exists())
            if size != seen:
                seen, since = size, time.monotonic()
            steps_done = [event for event in events.read(folder) if event["kind"] == "step"]
            for event in steps_done[told:]:
                say(f"step {event['record']['number']} recorded after {time.monotonic() - begun:.0f} s")
            told = len(steps_done)
            if time.monotonic() - since > patience:
                break
    finally:
        left = _end_all(process, family)
        shared_memory.remove()
        remove_dead_sockets()
    return CommandEnd(code, time.monotonic() - begun, memory, left)


def _sum_memory(pid: int) -> int:
    import psutil

    total = 0
    for one in [pid, *(child.pid for child in descendants(pid))]:
        with suppress(psutil.Error):
            total += psutil.Process(one).memory_info().rss
    return total


def _end_all(process: subprocess.Popen[bytes], family: frozenset[Process]) -> int:
    """End what is left of a command: its session, and what descended from it; return how many processes those were."""
    ended: set[Process] = set()
    while left := _find_left(process, family) - ended:  # one that is ended may have started another
        for one in left:
            with suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
        ended |= left
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
    process.wait()
    ended |= (more := _find_left(process, family) - ended)
    for one in more:
        with suppress(OSError):
            os.kill(one.pid, signal.SIGKILL)
    for one in ended:  # their parents are gone: they are this process' children now
        with suppress(ChildProcessError):
            os.waitpid(one.pid, 0)
    return len(ended)


def _find_left(process: subprocess.Popen[bytes], family: frozenset[Process]) -> frozenset[Process]:
    """Return what lives of a command beside its first process: orphans of it come to this process."""
    ours = descendants(os.getpid())
    sessions = {_session_of(one.pid) for one in family} | {process.pid}
    of_it = {one for one in ours if one in family or _session_of(one.pid) in sessions - {-1, os.getsid(0)}}
    below = {one for parent in of_it for one in descendants(parent.pid)}
    return frozenset(one for one in of_it | below | descendants(process.pid) if one.pid != process.pid)


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def find_missing(command: Sequence[str]) -> str:
    """Return why a command can't be started; "" if it can."""
    if shutil.which(command[0]) is None:
        return f"there is no program {command[0]!r}"
    if sys.platform != "linux":
        return "a command is rehearsed on Linux only"
    return ""
