"""Run tests in an environment: pytest there, with the trial plugin, watched from here."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace

from pytest_rlregress.commands.trials import import_recorder, trial_plugin
from pytest_rlregress.commands.trials.trial import TrialRun
from pytest_rlregress.records import reader
from pytest_rlregress.records.record_types import Record
from pytest_rlregress.util.processes import how_it_ended

#: What a run that is stopped has to tear down; contained tests take 15 of them.
STOP_SECONDS = 20.0
#: Characters kept of what pytest printed, from its end.
OUTPUT = 20_000
_GONE_SECONDS = 10.0
_OPTIONS = (
    *("-p", "pytest_rlregress.commands.trials.trial_plugin"),
    "-n0",  # a test to find isn't a night's run: what the user's configuration says of xdist is for those
    "--runxfail",  # whether it fails is asked, not whether that was expected
    *("--maxfail=0", "--continue-on-collection-errors", "--color=no", "-o", "rlregress_record_dir="),
)


@dataclass(frozen=True)
class TrialRequest:
    """The tests of a run.

    Attributes:
        arguments: Files, folders and node ids for pytest, as from the current folder.
        shipped: The same among the shipped scenarios, which each environment has itself: ``rollout``.
        failures: Documented failures: the tests that reproduce or guard them. With none of the three, what pytest runs
            without arguments.
        tests: Only tests with these keys; see ``Observation.test``.
        options: More options for pytest, such as ``--hw=cpu``.
        finds_needs: Whether it is found out what the tests need: those that say it are not run, the imports of the
            others are recorded.
    """

    arguments: tuple[str, ...] = ()
    shipped: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    tests: frozenset[str] | None = None
    options: tuple[str, ...] = ()
    finds_needs: bool = False


def run_tests(python: Path, request: TrialRequest, *, timeout: float, say: Callable[[str], None]) -> TrialRun:
    """Run tests in an environment, from the current folder.

    Args:
        python: The environment's interpreter, where the environment has one: ``<environment>/bin/python``.
        request: The tests.
        timeout: Seconds for the whole run. A test has its own limit, ``--rl-timeout``.
        say: Takes a line of progress.

    Raises:
        KeyboardInterrupt: Ctrl-C; nothing of the run is left then.
    """
    begun, late = time.monotonic(), False
    with tempfile.TemporaryDirectory(prefix="rlregress-trial-") as folder:
        asked, printed = Path(folder, "request.json"), Path(folder, "printed")
        records = asked.with_name(trial_plugin.RECORDS)
        records.mkdir()
        tests = None if request.tests is None else sorted(request.tests)
        about_run = {"shipped": request.shipped, "failures": request.failures, "finds_needs": request.finds_needs}
        asked.write_text(json.dumps({**about_run, "tests": tests, "parent": os.getpid()}))
        variables = _variables(Path(os.path.abspath(python)).parent)
        if request.finds_needs:
            shutil.copyfile(import_recorder.__file__, Path(folder, "sitecustomize.py"))
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, variables.get("PYTHONPATH")]))
        # Without the plugin that has the cache pytest knows no --ff, which the user's configuration may give.
        ours = (f"--rl-trial={asked}", "-o", f"cache_dir={folder}/cache")
        process = _start(python, [*ours, *request.options, *request.arguments], printed, variables)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                say(f"stopping the run: its tests have {STOP_SECONDS:g} s to be torn down")
                _stop(process)
        output = printed.read_text(errors="replace")[-OUTPUT:]
        found = TrialRun(
            _read_record(records),
            time.monotonic() - begun,
            needed=_read_needed(asked.with_name(trial_plugin.NEEDED)),
            imported=tuple(dict.fromkeys(_read_imported(Path(folder, import_recorder.RECORD)))),
        )
    trouble = _explain_exit(process.returncode, found, output, request)
    return replace(found, trouble=f"the run had no end after {timeout:g} s" if late else trouble)


def _read_record(folder: Path) -> Record | None:
    """Read the record of a run; None of one that has written none."""
    for path in folder.glob("[!.]*.json*"):
        with contextlib.suppress(reader.RecordError):
            return reader.read(path)
    return None


def _read_needed(path: Path) -> tuple[str, ...] | None:
    needed = json.loads(path.read_text()) if path.exists() else None
    return None if needed is None else tuple(needed)


def _read_imported(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if path.exists() else []


def list_declared_needs(request: TrialRequest) -> tuple[str, ...] | None:
    """List the components of the stack that tests say they need, here; None where one of them says nothing."""
    collect = dataclasses.replace(request, options=(*request.options, "--collect-only"))
    return run_tests(Path(sys.executable), collect, timeout=300, say=lambda _: None).needed


def _start(python: Path, arguments: list[str], printed: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the environment's pytest as its script does: ``-m pytest`` would put this folder before the packages."""
    binaries = Path(os.path.abspath(python)).parent
    with printed.open("wb") as out:
        return subprocess.Popen(
            [binaries / python.name, binaries / "pytest", *_OPTIONS, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=variables,
            start_new_session=True,  # Ctrl-C comes to this process, which passes it on
        )


def _variables(binaries: Path) -> dict[str, str]:
    """Make the variables of the activated environment from those of this process."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "RLREGRESS_RECORD_DIR")}
    if binaries.parent != Path(sys.prefix) and kept.get("PYTHONDONTWRITEBYTECODE"):
        del kept["PYTHONDONTWRITEBYTECODE"]
        # Else every run compiles the environment's packages again. Beside the user's own files there is still none.
        kept.setdefault("PYTHONPYCACHEPREFIX", str(binaries.parent / "bytecode"))
    path = os.pathsep.join([str(binaries), *filter(None, [kept.get("PATH")])])
    return {**kept, "VIRTUAL_ENV": str(binaries.parent), "PATH": path}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a run: politely, then with all that it started."""
    started = _descendants(process)
    try:
        process.terminate()  # ends pytest as Ctrl-C does, and is heeded where a shell has SIGINT ignored
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        started |= _descendants(process)
    finally:
        process.kill()
        process.wait()
        _, left = psutil.wait_procs(started, _GONE_SECONDS)  # contained tests end on their own once pytest has
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()


def _descendants(process: subprocess.Popen[bytes]) -> set[psutil.Process]:
    try:
        return set(psutil.Process(process.pid).children(recursive=True))
    except psutil.Error:  # gone meanwhile
        return set()


def _explain_exit(code: int, found: TrialRun, output: str, request: TrialRequest) -> str:
    """Say from pytest's exit code and output why a run says nothing of its tests; "" if it does."""
    ended = found.record is not None and found.record.results.extra.state == "complete"
    if (code in (0, 1) and ended) or (code in (4, 5) and found.observations):
        return ""
    what = ", ".join([*request.arguments, *request.shipped, *sorted(request.tests or ())])
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else "nothing was printed"
    if code == 5:
        of = f" of {', '.join(request.failures)}" if request.failures else ""
        return f"no such test here: {what or f'none{of} was found'}"
    if code == 4:
        missing = _find_last(r"ERROR: (?:file or directory )?not found: (.+)", output)
        return (
            f"no such test here: {_make_relative(missing)}"
            if missing
            else _find_last(r"\berror: (.+)", output, re.I) or last
        )
    if code == 3:
        return f"internal error of pytest: {_find_last(r'INTERNALERROR> +([^ ].*)', output) or last}"
    interrupted = _find_last(r"^!+ (.*?) !+$", output)
    if code == 2 or interrupted:
        return f"the run was interrupted: {interrupted or last}"
    signal_name, how = how_it_ended(code, raw=False)
    return f"pytest {how}" if signal_name else f"pytest ended with exit code {code} before its tests did: {last}"


def _find_last(pattern: str, output: str, flags: int = 0) -> str:
    """Find the last match of a pattern, line by line."""
    return next(reversed(re.findall(pattern, output, re.MULTILINE | flags)), "").strip()


def _make_relative(test: str) -> str:
    """Name a test by its path from here, where it lies here."""
    return test.removeprefix(f"{Path.cwd()}{os.sep}")
