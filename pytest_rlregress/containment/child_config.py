"""The pytest configuration of a contained child: its parent's, without what belongs to the session as a whole.

A child runs single tests by node id and sends their reports home. Selecting, ordering, rerunning, time limits, report
files and the terminal stay with the pytest process. docs/plugins.md says what that means for each plugin.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from pytest_rlregress.containment import Order
from pytest_rlregress.util.surroundings import user_name

#: Command-line options that are the session's, and what they are in a child.
_SESSION_OPTIONS: Mapping[str, Any] = {
    # Which tests run, and in which order.
    "keyword": "",
    "markexpr": "",
    "deselect": None,
    "maxfail": 0,
    "pyargs": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "randomly_reorganize": False,
    # How they are distributed, run again, limited in time.
    "numprocesses": None,
    "dist": "no",
    "tx": [],
    "forked": False,
    "reruns": 0,
    # What is shown or written instead of or beside a run.
    "showfixtures": False,
    "show_fixtures_per_test": False,
    "setupshow": False,
    "setuponly": False,
    "setupplan": False,
    "cacheshow": None,
    "cacheclear": False,
    "pastebin": None,
    "cov_source": [],
    "no_cov": True,
    "force_sugar": False,
    "log_file": os.devnull,  # the pytest process is writing it
    # A test that asks for a debugger is told how to get one.
    "usepdb": False,
    "trace": False,
    "usepdb_cls": (__name__, "NoDebugger"),
    # A plugin of the session that a child leaves out may have declared names in the ini file.
    "strict_config": False,
    # Output goes to the child's log, where it outlives the child.
    "capture": "no",
}
#: Plugins that declare their options in a child and do nothing else there: the pytest process runs tests again.
_INACTIVE = ("rerunfailures", "flaky")
#: The child's plugins were imported by the warm server, before pytest could rewrite their assert statements.
_IMPORTED_BEFORE = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
#: Variables by which coverage starts by itself in processes that Python starts.
COVERAGE_VARIABLES = (
    "COV_CORE_SOURCE",
    "COV_CORE_CONFIG",
    "COV_CORE_DATAFILE",
    "COVERAGE_PROCESS_START",
    "COVERAGE_PROCESS_CONFIG",
)


# -- in the pytest process ---------------------------------------------------------------------------------------------


def order(
    config: pytest.Config, files: Iterable[Path], folder: Path, variables: Mapping[str, str], coverage: str | None
) -> Order:
    """Return what a child needs that collects ``files``, with ``variables`` of its own.

    Its temporary folder is ``folder``, which goes with it; a cache worth keeping stays.
    """
    inductor = Path(tempfile.gettempdir(), f"torchinductor_{user_name()}")
    factory: Any = getattr(config, "_tmp_path_factory", None)  # not with -p no:tmpdir
    # For what its tests make in tmp_path, pytest's own rules hold which to keep.
    basetemp = factory.getbasetemp() / f"contained-{folder.name}" if factory else folder / "tmp"
    files = list(dict.fromkeys(files))
    return Order(
        options=options(config, basetemp),
        files=tuple(map(str, files)),
        arguments=tuple(map(str, _list_arguments(config, files))),
        # A plain test may have left this process in a folder that is gone.
        folder=_find_folder(config),
        environment={"TORCHINDUCTOR_CACHE_DIR": str(inductor), **os.environ, "TMPDIR": str(folder), **variables},
        workerinput=workerinput(config),
        markers=tuple(config.getini("markers")),
        coverage=coverage,
    )


def _find_folder(config: pytest.Config) -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return str(config.invocation_params.dir)


def _list_arguments(config: pytest.Config, files: list[Path]) -> list[Path]:
    """List what a child's pytest is to collect: the files, or the folder that those outside the root folder share.

    The node id of a file outside that is an argument itself is "": its fixtures would be there for every other file.
    """
    outside = [file for file in files if not file.is_relative_to(config.rootpath)]
    if not outside:
        return files
    shared = Path(os.path.commonpath([file.parent for file in outside]))
    return [shared, *(file for file in files if file not in outside)]


def has_test_name(config: pytest.Config, file: Path) -> bool:
    """Return whether pytest collects a file of a folder, by its name."""
    return any(fnmatch(file.name, name) for name in config.getini("python_files"))


def options(config: pytest.Config, basetemp: Path) -> dict[str, bytes]:
    """Return the options of a child's pytest, each pickled; ``basetemp`` is for its ``tmp_path`` folders.

    What a plugin or a conftest.py keeps there that cannot be pickled is left out, for a child's own to set again.
    """
    own = {name: value for name, value in vars(config.option).items() if name != "file_or_dir"}
    own.update((name, value) for name, value in _SESSION_OPTIONS.items() if name in own)
    # Of -p NAME and -p no:NAME the last counts, here by leaving the other out: a child has loaded its plugins by then.
    own["plugins"] = list({name.removeprefix("no:"): name for name in own.get("plugins") or ()}.values())
    own["pythonwarnings"] = [*(own.get("pythonwarnings") or ()), _IMPORTED_BEFORE]
    own["basetemp"] = basetemp
    # Else both would be looked for from the test files, which may be in another project, or in site-packages.
    own["rootdir"] = str(config.rootpath)
    own["inifilename"] = config.inipath and str(config.inipath)
    pickled = {}
    for name, value in own.items():
        with suppress(Exception):  # any kind: pickle calls the value's own methods
            pickled[name] = pickle.dumps(value)
    return pickled


def unpickled(options: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what ``options`` gave, without values whose classes cannot be imported here, such as a conftest's."""
    found = {}
    for name, value in options.items():
        with suppress(Exception):
            found[name] = pickle.loads(value)
    return found


def plugin_modules(config: pytest.Config) -> tuple[str, ...]:
    """Return the modules of the installed plugins that this process has loaded, which a child will load too."""
    loaded = [plugin for plugin, _ in config.pluginmanager.list_plugin_distinfo()]
    return tuple(dict.fromkeys(plugin.__name__ for plugin in loaded if isinstance(plugin, ModuleType)))


def workerinput(config: pytest.Config) -> dict[str, Any]:
    """Make a child look like one of xdist's workers, so that plugins leave writing files to the session."""
    found = dict(getattr(config, "workerinput", {}))
    found.setdefault("workerid", "master")
    found.setdefault("workercount", 1)
    found.setdefault("testrunuid", uuid.uuid4().hex)
    found.setdefault("mainargv", sys.argv)
    if "randomly_seed" in config.option:
        found.setdefault("randomly_seed", config.option.randomly_seed)
    return found


def coverage(say: Callable[[str], None]) -> str | None:
    """Return the configuration of the measurement that runs in this process, for its children; None for none.

    It was started by pytest-cov or ``coverage run``. Says so if coverage is too old to hand its configuration on.
    """
    module = sys.modules.get("coverage")
    current: Any = module.Coverage.current() if module else None
    if current is None:
        return None
    if not hasattr(current.config, "serialize"):
        say("coverage is not measured in contained tests: that needs coverage 7.10 or newer")
        return None
    config: str = current.config.serialize()
    return config


# -- in the child ------------------------------------------------------------------------------------------------------


def configured(
    given: Mapping[str, Any], arguments: Iterable[str], markers: Iterable[str], without: Iterable[str]
) -> Any:
    """Return a config with these options, its plugins loaded.

    Args:
        given: Values of options.
        arguments: What to collect.
        markers: The session's lines of ini ``markers``: plugins that are not loaded here may have added some.
        without: Names of plugins not to load.
    """
    blocked = [f"no:{name}" for name in (*_INACTIVE, *without)]
    # As arguments, or they would be imported before they are turned off.
    off = [f"-p{name}" for name in given["plugins"] if name.startswith("no:")]
    config = pytest.Config.fromdictargs({**given, "plugins": [*given["plugins"], *blocked]}, [*off, *arguments])
    known = set(config.getini("markers"))
    for line in markers:
        if line not in known:
            config.addinivalue_line("markers", line)
    _silence_terminal(config)
    return config


def _silence_terminal(config: pytest.Config) -> None:
    """Register a terminal reporter that prints nothing: pytest and its plugins ask for one to format what they say."""
    module: Any = config.pluginmanager.get_plugin("terminal")
    if module is not None:  # else the whole session has none
        config.pluginmanager.unregister(module)
        no_hooks = {name: None for name in dir(module.TerminalReporter) if name.startswith("pytest_")}
        reporter = type("SilentReporter", (module.TerminalReporter,), no_hooks)
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for as long as the process lives)
        config.pluginmanager.register(reporter(config, nowhere), "terminalreporter")


def plugin_of(config: pytest.Config, excinfo: pytest.ExceptionInfo[BaseException]) -> str | None:
    """Name of the installed plugin in whose code an exception was raised, or that called what raised it."""
    files = [os.path.realpath(entry.path) for entry in reversed(excinfo.traceback)]
    for file in files:
        for plugin, _ in config.pluginmanager.list_plugin_distinfo():
            source = os.path.realpath(getattr(plugin, "__file__", None) or "")
            package = getattr(plugin, "__package__", None)
            root = os.path.dirname(source) + os.sep if package else source
            if source and file.startswith(root) and not str(package).startswith("pytest_rlregress"):
                return config.pluginmanager.get_name(plugin)
    return None


class Measurement:
    """Measures coverage in the child; as a plugin it saves after every test, since the next may kill the child."""

    def __init__(self, config: str) -> None:
        from coverage import Coverage

        self._measured = Coverage(config_file=f":data:{config}", data_suffix=True)
        # Every child of a session would say the same.
        quiet = ["no-data-collected", "module-not-imported", "module-not-measured", "already-imported"]
        self._measured.set_option("run:disable_warnings", [*quiet, "couldnt-parse"])
        self._measured.start()

    def pytest_runtest_logfinish(self) -> None:
        """Write the data file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._measured.save()

    pytest_unconfigure = pytest_runtest_logfinish  # with what tore down the last fixtures


class NoDebugger:
    """What ``breakpoint()`` and ``pdb.set_trace()`` start in a child, which has no terminal: a failure that says so."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def set_trace(self, *args: object, **kwargs: object) -> NoReturn:
        """Fail the test."""
        pytest.fail("a debugger was started in a contained test, which has no terminal: run it with --rl-inline")
