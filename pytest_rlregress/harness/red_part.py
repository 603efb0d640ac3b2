"""The command that runs the red part of a run again, as the run was called."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_rlregress.harness.settings import OPTIONS
from pytest_rlregress.records.record_types import RecordedTest
from pytest_rlregress.records.stories import is_shipped_test, name_module, shorten_path
from pytest_rlregress.util.text import clean_lines

_NAMED = 12  # tests; more are told by their files
#: What chose the tests, which are named now, and what would write over the records of the whole run.
_LEFT_OUT = {"failure", "component", "quick", "record_dir", "update_goldens"}
_OURS = {option.flag: option.takes for option in OPTIONS if option.name not in _LEFT_OUT}
_VARIABLES = [option.env for option in OPTIONS if option.name not in _LEFT_OUT]
#: pytest's options that say how tests are found and run, and whether a value follows.
_PYTESTS = {
    "-p": True, "-c": True, "--config-file": True, "--rootdir": True, "-o": True, "--override-ini": True,
    "--confcutdir": True, "--import-mode": True, "-W": True, "--pythonwarnings": True, "--noconftest": False,
}  # fmt: skip


def make_red_command(config: pytest.Config, tests: Mapping[str, RecordedTest], root: Path) -> str:
    """Return a line for a shell that runs what failed once more; "" if no test did.

    Args:
        config: Of the run.
        tests: By node id.
        root: What the paths of the tests' files are relative to.
    """
    red = {nodeid: test for nodeid, test in tests.items() if test.status == "failed"}
    named = [_name_test(nodeid, test, root) for nodeid, test in red.items() if not test.extra.component]
    if len(named) > _NAMED:
        named = [name.partition("::")[0] for name in named]
    broken = sorted({test.extra.component for test in red.values() if test.extra.component})
    if not named and not broken:
        return ""
    set_before = [f"{name}={shlex.quote(os.environ[name])}" for name in _VARIABLES if os.environ.get(name)]
    words = [*_find_pytest(), *_keep_options(list(map(str, config.invocation_params.args)))]
    if broken and not named:
        given = config.args if config.args_source == pytest.Config.ArgsSource.ARGS else []
        words += [f"--rl-component={','.join(broken)}", *given]
    if any(name.startswith("pytest_rlregress.") for name in named) or config.getoption("pyargs", False):
        words.append("--pyargs")
    return " ".join([*set_before, clean_lines(shlex.join([*words, *dict.fromkeys(named)]))])


def _name_test(nodeid: str, test: RecordedTest, root: Path) -> str:
    """Name a test as pytest takes it in the folder where the user is: by its path, or by its module if it is ours."""
    file = root / test.file_path
    rest = nodeid.partition("::")[1] + nodeid.partition("::")[2]
    path = shorten_path(file)
    if os.path.isabs(path) and is_shipped_test(test.name):
        return name_module(test.name)
    return f"{path}{rest}"


def _find_pytest() -> list[str]:
    """Return the words by which pytest was started, where these can be told."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return [_shorten_program(sys.executable), "-m", "pytest"]
    if program.name in ("pytest", "py.test") and program.is_file():
        return [_shorten_program(str(program))]
    return ["pytest"]


def _shorten_program(program: str) -> str:
    """Shorten a program to its name if the PATH leads to it."""
    name = os.path.basename(program)
    found = shutil.which(name)
    is_found = found is not None and os.path.abspath(found) == os.path.abspath(program)
    return name if is_found else shorten_path(Path(program))


def _keep_options(given: Sequence[str]) -> Iterator[str]:
    """Yield the options, with their values, that say how to run tests; not those that choose or report."""
    words = iter(given)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in _OURS or name in _PYTESTS:
            yield word
            if not equals and (_OURS.get(name) or _PYTESTS.get(name)):
                yield next(words, "")
        elif word[:2] in ("-p", "-c", "-o", "-W") and not word.startswith("--"):
            yield word
