"""One run of tests in an environment: pytest there, with the trial plugin, watched from here; and what came out."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import psutil

from pytest_rlregress.failures.observations import Observation
from pytest_rlregress.failures.verdicts import Outcome, Rank, rank
from pytest_rlregress.hardware.matching import gib
from pytest_rlregress.records import reader
from pytest_rlregress.records.record_types import Record, RecordedTest
from pytest_rlregress.trials import configuration, trial_plugin
from pytest_rlregress.util.processes import how_it_ended

#: What a run that is stopped has to tear down; contained tests take 15 of them.
STOP_SECONDS = 20.0
_GONE_SECONDS = 10.0
_OPTIONS = (
    *("-p", "pytest_rlregress.trials.trial_plugin"),
    "-n0",  # a test to find isn't a night's run: what the user's configuration says of xdist is for those
    "--runxfail",  # whether it fails is asked, not whether that was expected
    *("--maxfail=0", "--continue-on-collection-errors", "--color=no", "-o", "rlregress_record_dir="),
    # Of these the request has what a trial takes: see ``configuration``.
    *("-o", "addopts=", "-o", "rlregress_update_goldens="),
)
_LAST_LINES = 20_000  # characters of what pytest printed, from its end


@dataclass(frozen=True)
class TrialRequest:
    """The tests of a run: with no arguments, shipped ones or failures, what pytest runs without arguments."""

    arguments: tuple[str, ...] = ()  # files, folders and node ids for pytest, as from the current folder
    shipped: tuple[str, ...] = ()  # the same among the shipped scenarios, which each environment has itself
    failures: tuple[str, ...] = ()  # documented failures: the tests that reproduce or guard them
    tests: frozenset[str] | None = None  # only tests with these keys; see ``Observation.test``
    options: tuple[str, ...] = ()  # more options for pytest, such as ``--hw=cpu``
    finds_needs: bool = False  # tests that say what they need are not run, the imports of the others are recorded


class TrialRun(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """One pytest run in an environment."""

    record: Record | None = None  # or as much of it as a killed run has left
    seconds: float = 0.0
    trouble: str = ""  # why the run says nothing about its tests: it did not end, no such test, …
    needed: tuple[str, ...] | None = None  # components that the tests say they need; None where one says nothing
    imported: tuple[str, ...] = ()  # files of the modules that its processes imported, where that was asked for

    @cached_property
    def observations(self) -> Mapping[str, Observation]:
        """Every test seen, by its key."""
        tests = self.record.results.tests if self.record else ()
        return {test.name: _observe(test, test.extra.outcome) for test in tests if test.extra.outcome is not None}

    def find(self, test: str) -> Observation | None:
        """Find a test; else what kept it from being run: its file, or a conftest file, that cannot be imported."""
        conftests = (one for one in self.observations.values() if one.test.endswith("conftest.py"))
        return self.observations.get(test) or self.observations.get(test.partition("::")[0]) or next(conftests, None)

    @property
    def hardware(self) -> str:
        """The profile and the devices of the run, in words."""
        if self.record is None:
            return ""
        found = self.record.results.extra.hardware
        devices = "; ".join(
            f"{one.name} ({'MIG slice, ' if one.mig else ''}capability {one.capability}, {gib(one.memory_bytes)})"
            for one in found.devices
            if found.profile != "cpu"
        )
        return " of ".join(filter(None, [found.profile, devices]))


def _observe(test: RecordedTest, outcome: Outcome) -> Observation:
    extra = test.extra
    verdict = extra.verdict or ("unavailable" if outcome.kind == "skipped" else outcome.kind)
    if outcome.phase == "collect" and outcome.kind != "skipped":
        verdict = "uncollected"
    elif outcome.phase == "teardown":
        verdict = "failed"
    text = "" if rank(verdict) is Rank.GOOD else test.trace
    named = tuple(filter(None, extra.named.split(",")))
    return Observation(
        test.name, outcome, verdict, text, extra.failure, extra.side, named, extra.untried, extra.expected
    )


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
    binaries = Path(os.path.abspath(python)).parent
    with tempfile.TemporaryDirectory(prefix="rlregress-trial-") as name:
        folder = Path(name)
        asked, printed, records = (folder / one for one in ("request.json", "printed", trial_plugin.RECORDS))
        records.mkdir()
        tests = None if request.tests is None else sorted(request.tests)
        about_run = {"shipped": request.shipped, "failures": request.failures, "finds_needs": request.finds_needs}
        asked.write_text(json.dumps({**about_run, "tests": tests, "parent": os.getpid()}))
        variables = make_variables(binaries)
        if request.finds_needs:
            write_recorder(folder)
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [name, variables.get("PYTHONPATH")]))
        # The environment's pytest as its script does: ``-m pytest`` would put this folder before the packages. Without
        # the plugin that has the cache pytest knows no --ff, which the user's configuration may give.
        pytest = (str(binaries / python.name), str(binaries / "pytest"), *_OPTIONS)
        ours = (f"--rl-trial={asked}", "-o", f"cache_dir={folder}/cache")
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [*pytest, *ours, *request.options, *request.arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=variables,
                start_new_session=True,  # Ctrl-C comes to this process, which passes it on
            )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                say(f"stopping the run: its tests have {STOP_SECONDS:g} s to be torn down")
                _stop(process)
        output = printed.read_text(errors="replace")[-_LAST_LINES:]
        needed, imported = folder / trial_plugin.NEEDED, folder / "imported"
        files = imported.read_text("utf-8", "surrogateescape").splitlines() if imported.exists() else []
        found = TrialRun(
            _read_record(records),
            time.monotonic() - begun,
            needed=msgspec.json.decode(needed.read_bytes(), type=tuple[str, ...] | None) if needed.exists() else None,
            imported=tuple(dict.fromkeys(files)),
        )
    trouble = _explain_exit(process.returncode, found, output, request)
    return msgspec.structs.replace(found, trouble=f"the run had no end after {timeout:g} s" if late else trouble)


def _read_record(folder: Path) -> Record | None:
    """Read the record of a run; None of one that has written none."""
    for path in folder.glob("[!.]*.json*"):
        with contextlib.suppress(reader.RecordError):
            return reader.read(path)
    return None


def make_variables(binaries: Path) -> dict[str, str]:
    """Make the variables of the activated environment from those of this process."""
    kept = {name: value for name, value in os.environ.items() if name not in configuration.LEFT_OUT}
    if binaries.parent != Path(sys.prefix) and kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Else every run compiles the environment's packages again. Beside the user's own files there is still none.
        kept.setdefault("PYTHONPYCACHEPREFIX", str(binaries.parent / "bytecode"))
    path = os.pathsep.join([str(binaries), *filter(None, [kept.get("PATH")])])
    return {**kept, "VIRTUAL_ENV": str(binaries.parent), "PATH": path}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a run: politely, then with all that it started."""
    started = _list_descendants(process)
    try:
        process.terminate()  # ends pytest as Ctrl-C does, and is heeded where a shell has SIGINT ignored
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        started |= _list_descendants(process)
    finally:
        process.kill()
        process.wait()
        _, left = psutil.wait_procs(started, _GONE_SECONDS)  # contained tests end on their own once pytest has
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()


def _list_descendants(process: subprocess.Popen[bytes]) -> set[psutil.Process]:
    try:
        return set(psutil.Process(process.pid).children(recursive=True))
    except psutil.Error:  # gone meanwhile
        return set()


_NOT_FOUND = re.compile(r"^ERROR: (?:file or directory )?not found: (.+)", re.MULTILINE)
# What pytest says of an interruption, of an error of its own, and of its options.
_REASON = re.compile(r"^(?:!+ (.*?) !+|INTERNALERROR> +(\S.*)|.*\berror: (.+))$", re.MULTILINE | re.IGNORECASE)


def _explain_exit(code: int, found: TrialRun, output: str, request: TrialRequest) -> str:
    """Say from pytest's exit code and output why a run says nothing of its tests; "" if it does."""
    ended = found.record is not None and found.record.results.extra.state == "complete"
    if (code in (0, 1) and ended) or (code in (4, 5) and found.observations):
        return ""
    missing = _NOT_FOUND.search(output)
    if code == 5 or (code == 4 and missing):
        asked = [*request.arguments, *request.shipped, *request.failures, *sorted(request.tests or ())]
        named = missing[1].removeprefix(f"{Path.cwd()}{os.sep}") if missing else ", ".join(asked)
        return f"no such test here: {named or 'none was found'}"
    signal_name, how = how_it_ended(code, raw=False)
    if signal_name:
        return f"pytest {how}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else "nothing was printed"
    said = ["".join(reason) for reason in _REASON.findall(output)]
    return f"pytest ran no test: {said[-1]}" if said else f"pytest ended with exit code {code}: {last}"


def write_recorder(folder: Path) -> None:
    """Write the module by which Python processes that have the folder on their PYTHONPATH record their imports.

    https://docs.python.org/3/library/site.html#module-sitecustomize
    """
    source = f"from __future__ import annotations\n\n{inspect.getsource(_record_imports)}\n_record_imports(__file__)\n"
    (folder / "sitecustomize.py").write_text(source)


def _record_imports(file: str) -> None:
    """Record the files of the modules that this process and its forks import from now on; stands alone.

    Their paths are written beside the file, a line each; several times where several processes import them.
    """
    import sys
    from contextlib import suppress
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from pathlib import Path

    record = Path(file).with_name("imported")
    seen: set[str] = set()

    def note(event: str, args: tuple[Any, ...]) -> None:
        # Modules of Python code are executed; of extension modules the event "import" names the file.
        if event == "exec":
            code = args[0]
            imported = code.co_filename if getattr(code, "co_name", "") == "<module>" else None
        else:
            imported = args[1] if event == "import" else None
        if isinstance(imported, str) and imported not in seen:
            seen.add(imported)
            # Opened each time: a test may close any descriptor. What is raised here would stop the import.
            with suppress(OSError, ValueError), open(record, "a", encoding="utf-8", errors="surrogateescape") as out:
                out.write(f"{imported}\n")

    hidden = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != str(record.parent)])
    if hidden is not None and hidden.loader is not None:  # the environment's own, which this one hides
        hidden.loader.exec_module(module_from_spec(hidden))
    sys.addaudithook(note)
