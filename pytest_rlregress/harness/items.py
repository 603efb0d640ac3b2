"""Describe contained tests: side, group, limits, needs, why one cannot run here; which of them run, in which order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pytest_rlregress import stack
from pytest_rlregress.containment import ChildGroup, Limits
from pytest_rlregress.failures import fidelity
from pytest_rlregress.failures.catalogue import Catalogue, Failure, area_of
from pytest_rlregress.failures.verdicts import Verdict
from pytest_rlregress.harness.collection import StackFixture, asked_by, is_contained
from pytest_rlregress.harness.needs import find_reason, read_needs
from pytest_rlregress.harness.session import Session, usage
from pytest_rlregress.util.units import parse_memory, parse_seconds

#: On each contained test.
_TEST: pytest.StashKey[ContainedTest] = pytest.StashKey()
#: Keywords of the marker ``isolated``.
_KEYWORDS = ("group", "env", "fresh", "timeout", "memory", "stall")
#: Those of them that limit a test: the field of ``Limits``, and what makes its value.
_LIMITS: dict[str, tuple[str, Callable[[object], float]]] = {
    "timeout": ("seconds", parse_seconds),
    "memory": ("memory", parse_memory),
    "stall": ("stall", parse_seconds),
}


@dataclass(frozen=True)
class Side:
    """The side of a test: ``reproduces`` or ``guards`` a failure.

    Attributes:
        fidelity: How real the test is, if known.
        expected: The verdict that its marker expects of it: ``reproduced`` or ``absent``; "" for its failure's.
    """

    name: str
    failure: Failure
    fidelity: str
    expected: str = ""


@dataclass(frozen=True, eq=False)
class ContainedTest:
    """One contained test.

    Attributes:
        group: Whose child it runs in.
        limits: What it may use: by its marker, else as the run says.
        components: The components, and parts of them, that it needs: named, or because it asks for their fixtures. A
            test that reproduces a failure needs all components of its failure. A guard does not: with the remedy it may
            touch none of them.
        may_touch: The components that it needs, and those of its failure.
        gpus: How many GPUs it needs, where there are any: by its marker ``hw``, or for a fixture that uses one.
        unavailable: Why it cannot run here: hardware or components that are missing; "" if it can.
        on_hardware: Whether it computes on the hardware of the run: marked so, or where GPUs are by a fixture.
    """

    item: pytest.Item
    group: ChildGroup
    limits: Limits
    side: Side | None
    fixtures: Sequence[StackFixture]
    components: tuple[str, ...]
    may_touch: tuple[str, ...]
    gpus: int
    unavailable: str
    on_hardware: bool

    @property
    def reproduces(self) -> bool:
        """Whether it does the failing act of a documented failure."""
        return self.side is not None and self.side.name == "reproduces"

    @property
    def may_end_process(self) -> bool:
        """Whether what is documented of its act ends the process that the act is done in: a hang, a signal."""
        signatures = self.side.failure.signatures if self.side and self.reproduces else ()
        return any(one.signal is not None or one.kind in ("crashed", "hung") for one in signatures)

    @property
    def is_long(self) -> bool:
        """Whether it is marked long."""
        return self.item.get_closest_marker("long") is not None


def find(item: pytest.Item) -> ContainedTest | None:
    """Return what is known of a contained test; None for one that runs in pytest's own process."""
    return item.stash.get(_TEST, None)


def contained(session: pytest.Session) -> list[ContainedTest]:
    """Return the contained tests of a session, in their order."""
    return [test for item in session.items if (test := find(item))]


def describe_all(items: Sequence[pytest.Item], session: Session) -> list[ContainedTest]:
    """Find out what each contained test is, and keep it on the test.

    Raises:
        UsageError: A marker that says what is not allowed.
    """
    for item in items:
        test = describe(item, session)
        if test is not None:
            item.stash[_TEST] = test
    return [test for item in items if (test := find(item))]


def limit_seconds(item: pytest.Item, seconds: float, session: Session) -> bool | None:
    """Let a contained test take so many seconds, unless its marker says otherwise; None for other tests."""
    if (test := find(item)) is None:
        return None
    item.stash[_TEST] = replace(test, limits=_limits_of(item, replace(session.limits, seconds=seconds)))
    return True


def describe(item: pytest.Item, session: Session) -> ContainedTest | None:
    """Find out what a test is; None for one that is not contained.

    Raises:
        UsageError: A marker that says what is not allowed.
    """
    if not is_contained(item):
        return None
    fixtures = asked_by(item)
    side = usage(lambda: _side_of(item, session.catalogue))
    act = side.failure.components if side and side.name == "reproduces" else ()
    needs = read_needs(item, fixtures.values())
    whole = [stack.PARTS[name] for name in needs.components if name in stack.PARTS]
    components = tuple(dict.fromkeys([*act, *whole, *needs.components]))
    computes = any(fixture.hardware for fixture in fixtures.values())
    counts = [marker.kwargs.get("count") or 1 for marker in item.iter_markers("hw")]
    return ContainedTest(
        item,
        _group_of(item, fixtures),
        _limits_of(item, session.limits),
        side,
        tuple(fixtures.values()),
        components,
        may_touch=tuple(dict.fromkeys([*(side.failure.components if side else ()), *components])),
        gpus=max(counts, default=int(computes)),
        unavailable=find_reason(item, components, needs.interfaces, session),
        on_hardware=bool(counts) or (computes and session.profile_id not in (None, "cpu")),
    )


def _group_of(item: pytest.Item, fixtures: dict[str, StackFixture]) -> ChildGroup:
    marker = item.get_closest_marker("isolated")
    if marker is None:
        shared = [name for name, fixture in fixtures.items() if fixture.shared]
        return ChildGroup(" ".join(shared) or str(area_of(item.path)))
    unknown = marker.kwargs.keys() - set(_KEYWORDS)
    if unknown or marker.args:
        what = ", ".join(sorted(unknown)) or "positional arguments"
        raise pytest.UsageError(f"{item.nodeid}: isolated(): {what} not allowed; allowed: {', '.join(_KEYWORDS)}.")
    name = marker.kwargs.get("group")
    environment = tuple(sorted((str(k), str(v)) for k, v in marker.kwargs.get("env", {}).items()))
    fresh = bool(marker.kwargs.get("fresh") or environment)
    return ChildGroup(name or item.nodeid, environment, fresh, alone=name is None)


def _limits_of(item: pytest.Item, default: Limits) -> Limits:
    """Return what a test may use: its marker's values, else the run's."""
    marker = item.get_closest_marker("isolated")
    given: dict[str, Any] = {}
    for name, (field, parse) in _LIMITS.items():
        value = marker.kwargs.get(name) if marker else None
        try:
            if value is not None:
                given[field] = parse(value)
        except ValueError as allowed:
            what = f"isolated({name}={value!r}) is not allowed. Allowed: {allowed}."
            raise pytest.UsageError(f"{item.nodeid}: {what}") from None
    return replace(default, **given)


def _side_of(item: pytest.Item, catalogue: Catalogue) -> Side | None:
    """Return the side of a test; None for other tests.

    Raises:
        UsageError: Its marker has other arguments than an id and a fidelity, or its body hides what comes out.
        CatalogueError: Nothing in the catalogue has that id.
    """
    for name in fidelity.SIDES:
        marker = item.get_closest_marker(name)
        if marker is not None:
            allowed = ["fidelity", "expected"] if name == "reproduces" else ["fidelity"]
            if len(marker.args) != 1 or marker.kwargs.keys() - allowed:
                raise pytest.UsageError(f"{item.nodeid}: {name}() takes one failure id, and {' and '.join(allowed)}.")
            expected = marker.kwargs.get("expected", "")
            if expected not in ("", Verdict.REPRODUCED, Verdict.ABSENT):
                raise pytest.UsageError(
                    f"{item.nodeid}: expected={expected!r} is not allowed; allowed: 'reproduced', 'absent'."
                )
            failure = catalogue.find(marker.args[0], f"{item.nodeid}: {name}")
            if name == "reproduces" and _expects_exception(item):
                raise pytest.UsageError(
                    f"{item.nodeid}: a test that reproduces a failure does the failing act without pytest.raises: the "
                    "plugin judges what comes out, and an exception that the test catches would count as none."
                )
            try:
                return Side(name, failure, fidelity.of_test(failure.fidelity, marker.kwargs.get("fidelity")), expected)
            except fidelity.FidelityError as error:
                raise pytest.UsageError(f"{item.nodeid}: {name}: {error}") from None
    return None


def _expects_exception(item: pytest.Item) -> bool:
    """Return whether the body of a test uses ``pytest.raises``."""
    if not isinstance(item, pytest.Function):
        return False
    function: Any = inspect.unwrap(item.function)
    names = function.__code__.co_names if inspect.isfunction(function) else ()
    return "raises" in names and ("pytest" in names or function.__globals__.get("raises") is pytest.raises)


def choose(items: list[pytest.Item], session: Session) -> list[pytest.Item]:
    """Find out what the collected tests are; take from them, and return, those that weren't asked for.

    Raises:
        UsageError: A marker that says what is not allowed.
    """
    tests = describe_all(items, session)
    for test in tests:
        if test.side is not None:
            test.item.extra_keyword_matches.add(test.side.failure.id)  # -k takes it as it is printed
    if session.is_child:
        return []
    kept = {item for item in items if _is_chosen(item, session)}
    if session.quick:
        # Tests of another suite are kept too.
        kept -= {test.item for test in tests} - _choose_quick([test for test in tests if test.item in kept])
    return _keep(items, kept)


def leave_out_long(items: list[pytest.Item], session: Session) -> list[pytest.Item]:
    """Take from the tests that were selected, and return, the contained ones marked long, unless the run wants them."""
    tests = describe_all(items, session)  # once more: a conftest.py may have marked some
    long = {test.item for test in tests if test.is_long}
    if session.settings.long or session.is_child:
        long.clear()
    left_out = _keep(items, {*items} - long)
    session.left_out = len(left_out)
    return left_out


def order(items: list[pytest.Item]) -> None:
    """Put the tests of one child one after the other, where the first of them was.

    What is expected to end the child comes last: the others would need a new one, with its engine or server.
    """
    mates: dict[ChildGroup, list[ContainedTest]] = {}
    for test in map(find, items):
        if test and not test.group.alone:
            mates.setdefault(test.group, []).append(test)
    ordered: list[pytest.Item] = []
    for item in items:
        test = find(item)
        if test is None or test.group.alone:
            ordered.append(item)
        else:
            group = mates.pop(test.group, [])
            ordered += [mate.item for mate in sorted(group, key=lambda mate: mate.may_end_process)]
    items[:] = ordered


def _is_chosen(item: pytest.Item, session: Session) -> bool:
    """Return whether a test is of the failures and needs one of the components that the run is limited to."""
    test, components = find(item), session.settings.component
    failure = test.side.failure if test and test.side else None
    if session.chosen and failure not in session.chosen:
        return False
    return not components or (test is not None and any(name in test.may_touch for name in components))


def _choose_quick(tests: Sequence[ContainedTest]) -> set[pytest.Item]:
    """Return the tests that a quick run keeps: one of each side of every failure that needs no engine or the like.

    It is the first of them, sooner one that needs no process of its own.
    """
    first: dict[tuple[str, str], ContainedTest] = {}
    for test in sorted(tests, key=lambda test: test.group.alone or test.group.fresh):
        if test.side and not test.unavailable and not test.is_long and not stack.PARTS.keys() & {*test.components}:
            first.setdefault((test.side.failure.id, test.side.name), test)
    return {test.item for test in first.values()}


def _keep(items: list[pytest.Item], kept: set[pytest.Item]) -> list[pytest.Item]:
    left_out = [item for item in items if item not in kept]
    items[:] = [item for item in items if item in kept]
    return left_out
