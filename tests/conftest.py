from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from installed import build_wheel
from made_failures import FAILURES, write_failures
from patience import PATIENCE
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["pytester", "cards"]

# A shell's background job ignores Ctrl-C, and so would the processes that are sent one here.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Files whose tests make or look for files in /dev/shm, which all processes share: one at a time.
SHARED_MEMORY = ("test_faults", "test_leaks", "test_leftovers", "test_stack_faults")


#: Files that take long, the longest first, begun before the others: at the end no worker is left with one.
LONG = (
    "test_mutants.py",
    "test_bisect.py",
    "test_upgrade.py",
    "test_trl_mutants.py",
    "test_fixtures_document.py",
    "test_run_cluster.py",
    "test_containment.py",
    "test_run.py",
    "test_faults.py",
    "test_habits.py",
    "test_audit_command.py",
    "test_component_checks.py",
    "test_interface.py",
    "test_fidelity.py",
    "test_collection.py",
    "test_logs.py",
)


def pytest_configure(config):
    config.option.loadscopereorder = False  # xdist's own order is by the number of tests


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


class ByFile(LoadScopeScheduling):
    """Under ``-n`` the tests of a file, and those of SHARED_MEMORY together, run on one worker in their order."""

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return "shared memory" if file.endswith(tuple(f"/{name}.py" for name in SHARED_MEMORY)) else file


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def temporary(monkeypatch):
    """The temporary folder of this test and of what it starts, with a short path: see leftovers.session_folder."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def short_column(pytester, monkeypatch):
    """The documented failure ``short-column``, in the folder ``mine``."""
    folder = pytester.mkdir("mine")
    write_failures(folder, FAILURES)
    monkeypatch.setenv("RLREGRESS_SCENARIOS", str(folder))


@pytest.fixture
def preflight(capsys):
    """Run ``preflight --json``: its exit code, and the report, or the error where there is none."""
    from pytest_rlregress.cli import main

    def preflight(*arguments):
        code = main(["preflight", "--json", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else printed.err

    return preflight


@pytest.fixture
def preflight_names(preflight):
    """Run ``preflight``: its exit code, (failure, key, why, instead) of what is about names, and their doubts."""
    from pytest_rlregress.commands.preflight import rules

    def preflight_names(*arguments):
        code, report = preflight("--hw=h200", *arguments)
        found = [one for one in report["findings"] if one["failure"] in rules.OWN]
        doubts = [one["why"] for one in report["not_checked"] if one["failure"] in rules.OWN]
        return code, [(one["failure"], one["key"], one["why"], one["instead"]) for one in found], doubts

    return preflight_names


# Plugins of others that take longer to import than all else, and the one that changes the order of what tests read.
_WITHOUT = [word for name in ("anyio", "hydra_pytest", "hypothesispytest", "randomly") for word in ("-p", f"no:{name}")]


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest on test files in a process of its own: ``run("body", "--opt")`` or ``run({"name": "body"}, …)``.

    ``here=True`` runs it in this process: for an error of usage, before any test.
    """
    # Bytecode is kept, or every one of these processes compiles the harness again.
    for name in ("PYTHONDONTWRITEBYTECODE", "RLREGRESS_HW", "RLREGRESS_TIMEOUT", "RLREGRESS_REQUIRE", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)

    def run(files, *args, here=False):
        files = files if isinstance(files, dict) else {"test_it": files}
        if files:
            pytester.makepyfile(**files)
        if here:
            return pytester.runpytest_inprocess(*_WITHOUT, *args)
        return pytester.runpytest_subprocess(*_WITHOUT, *args, timeout=PATIENCE)

    return run


@pytest.fixture
def plugins(pytester, monkeypatch):
    """``plugins(name=code)``: the options of a run with plugins of the test's own."""
    folder = pytester.mkdir("plugins")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    def plugins(**codes):
        for name, code in codes.items():
            (folder / f"{name}.py").write_text(code)
        return [word for name in codes for word in ("-p", name)]

    return plugins


# Runs pytest under a reaper, as a contained child is; both end with it, and so does what was left.
_REAPER = """
import ctypes, os, sys, time
import psutil
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
pid = os.fork()
if pid == 0:
    import pytest
    status = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]])
    sys.stdout.flush()
    os._exit(status)
while os.waitpid(-1, 0)[0] != pid:
    pass
for process in psutil.Process().children(recursive=True):
    process.kill()
"""
_WITH_LEAKS = """
import os
from pytest_rlregress.containment import leaks

def pytest_configure(config):
    config.pluginmanager.register(leaks.Leaks(reaper=os.getppid()), leaks.PLUGIN)
"""


@pytest.fixture
def judged(pytester, monkeypatch):
    """Run a test file with the leak check, under a reaper; what leaks is waited for less long than for users."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def judged(body, grace=0.2, conftest=_WITH_LEAKS, reaper="reaper=os.getppid()", more=""):
        conftest = conftest.replace("reaper=os.getppid()", reaper)
        pytester.makeconftest(f"{conftest}\nleaks.GRACE_SECONDS = {grace}\n{more}")
        pytester.makepyfile(test_it=f"import os, subprocess, sys, pytest\n{inspect.cleandoc(body)}\n")
        return pytester.run(sys.executable, "-c", _REAPER)

    return judged
