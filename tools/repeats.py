"""pytest's side of an admission, ``pytest -p repeats``: repeats tests, and says which limits they have.

The repeats share what the tests of a run share: the warm server, the children, their engines.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_rlregress.containment import CHANNEL
from pytest_rlregress.harness import items
from pytest_rlregress.harness.collection import stable_id

_MARK = re.compile(r"([\[-])repeat(\d+)\]$")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare how often each test runs, and the file that gets the limits."""
    parser.addoption("--repeats", type=int, default=1)
    parser.addoption("--limits", type=Path)


@pytest.fixture(scope="session")
def repetition(request: pytest.FixtureRequest) -> int:
    """Return which repetition it is."""
    number: int = request.param
    return number


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat each test; pytest runs all tests before it takes a session parameter's next value."""
    count = metafunc.config.getoption("repeats")
    if count > 1:
        metafunc.fixturenames.append("repetition")
        names = [f"repeat{number}" for number in range(1, count + 1)]
        metafunc.parametrize("repetition", range(count), ids=names, indirect=True, scope="session")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the seconds that each test may take, by its name; not of an act that hangs as documented."""
    target = session.config.getoption("limits")
    if target is None or CHANNEL in session.config.stash:
        return
    limits = {
        split_name(stable_id(test.item.nodeid, test.item.path))[0]: test.limits.seconds
        for test in items.contained(session)
        if not _hangs_as_documented(test)
    }
    target.write_text(json.dumps(limits), encoding="utf-8")


def _hangs_as_documented(test: items.ContainedTest) -> bool:
    """Return whether the limit is what ends its act, as the failure's entry has it."""
    signatures = test.side.failure.signatures if test.side and test.reproduces else ()
    return any(one.kind == "hung" for one in signatures)


def split_name(name: str) -> tuple[str, int]:
    """Return a test's name without the mark of its repetition, and its number; 0 without one."""
    found = _MARK.search(name)
    if found is None:
        return name, 0
    end = "]" if found[1] == "-" else ""
    return name[: found.start()] + end, int(found[2])
