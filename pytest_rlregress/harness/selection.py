"""Which of the collected tests run, in which order, and what there is to warn of."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import pytest

from pytest_rlregress.containment import ChildGroup
from pytest_rlregress.harness.collection import IMPORTED
from pytest_rlregress.harness.items import ContainedTest, describe_all, find
from pytest_rlregress.harness.session import Session
from pytest_rlregress.stack import PARTS

#: What the summary says of a quick run.
SAID = (
    "quick run (--rl-quick): one reproduces and one guard of each failure that needs no engine, server or Ray cluster"
)


class ScenarioWarning(pytest.PytestWarning):
    """A test file that should be mended, and can run all the same."""


def adopt(items: list[pytest.Item], session: Session) -> list[pytest.Item]:
    """Find out what the collected tests are; take from them, and return, those that weren't asked for.

    Raises:
        UsageError: A marker that says what is not allowed.
    """
    for test in describe_all(items, session):
        if test.side is not None:
            test.item.extra_keyword_matches.add(test.side.failure.id)  # -k takes it as it is printed
    if session.is_child:
        return []
    kept = {item for item in items if _is_chosen(item, session)}
    if session.quick:
        kept = _choose_quick([item for item in items if item in kept and not _is_left_out(item, session)])
    return _keep(items, kept)


def warn(config: pytest.Config, session: Session, items: Sequence[pytest.Item]) -> None:
    """Warn, once a run, of test files that are slow to import.

    Raises:
        UsageError: Where the filters of warnings make errors of them.
    """
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if session.is_child or worker != "gw0":  # a contained child, or one of xdist's: each of them collects all
        return
    tests = [test for item in items if (test := find(item))]
    for module in dict.fromkeys(test.item.getparent(pytest.Module) for test in tests):
        if module is not None and IMPORTED in module.stash:
            names, seconds = module.stash[IMPORTED]
            _warn(
                module.path,
                f"{module.path.name} imports {names} at its top, or what it imports does: {seconds:.1f} s in pytest's "
                "own process before any test runs. Import it inside the tests and fixtures that use it.",
            )


def leave_out_long(items: list[pytest.Item], session: Session) -> list[pytest.Item]:
    """Take from the tests that were selected, and return, those marked long, unless the run asks for them."""
    left_out = _keep(items, {item for item in items if not _is_left_out(item, session)})
    session.left_out = len(left_out)
    return left_out


def order(items: list[pytest.Item]) -> None:
    """Put the tests of one child one after the other, where the first of them was.

    What is expected to end the child comes last: the others would need a new one, with its engine or server.
    """
    mates: dict[ChildGroup, list[pytest.Item]] = {}
    for item in items:
        if (group := _group_of(item)) and not group.alone:
            mates.setdefault(group, []).append(item)
    ordered: list[pytest.Item] = []
    for item in items:
        group = _group_of(item)
        ordered += [item] if group is None or group.alone else mates.pop(group, [])
    items.clear()
    for _, neighbours in groupby(ordered, key=_group_of):
        items += sorted(neighbours, key=_may_end_process)


def _group_of(item: pytest.Item) -> ChildGroup | None:
    test = find(item)
    return test.group if test else None


def _may_end_process(item: pytest.Item) -> bool:
    test = find(item)
    return test is not None and test.side is not None and test.side.may_end_process


def _is_chosen(item: pytest.Item, session: Session) -> bool:
    """Return whether a test is of the failures and needs one of the components that the run is limited to."""
    test, components = find(item), session.settings.component
    failure = test.side.failure if test and test.side else None
    if session.chosen and failure not in session.chosen:
        return False
    return not components or (test is not None and any(name in test.may_touch for name in components))


def _is_left_out(item: pytest.Item, session: Session) -> bool:
    """Return whether a test is marked long: a contained one, for the marker on others is their own suite's."""
    asked_for = session.settings.long or session.is_child
    return not asked_for and item.get_closest_marker("long") is not None and find(item) is not None


def _choose_quick(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that a quick run keeps: one of each side of every failure that needs no engine or the like.

    It is the first of them, sooner one that needs no process of its own. Tests of another suite are kept too.
    """
    kept: set[pytest.Item] = set()
    first: dict[tuple[str, str], ContainedTest] = {}
    for item in items:
        test = find(item)
        if test is None:
            kept.add(item)
        elif test.side is not None and not test.unavailable and not PARTS.keys() & {*test.components}:
            key = test.side.failure.id, test.side.name
            if key not in first or (_is_apart(first[key]) and not _is_apart(test)):
                first[key] = test
    return kept | {test.item for test in first.values()}


def _is_apart(test: ContainedTest) -> bool:
    return test.group.alone or test.group.fresh


def _keep(items: list[pytest.Item], kept: set[pytest.Item]) -> list[pytest.Item]:
    left_out = [item for item in items if item not in kept]
    items[:] = [item for item in items if item in kept]
    return left_out


def _warn(path: Path, text: str) -> None:
    try:
        warnings.warn_explicit(ScenarioWarning(text), None, filename=str(path), lineno=1)
    except ScenarioWarning as error:
        raise pytest.UsageError(str(error)) from None
