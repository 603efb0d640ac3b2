"""Lists of tests made from records: regressed since a moment, bad in one place only, different between two records."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_rlregress.failures.verdicts import Rank
from pytest_rlregress.records.changes import Change, Kind
from pytest_rlregress.records.history import History, Point, Problem, RecordedRun
from pytest_rlregress.records.night import find_run, judge_night
from pytest_rlregress.records.reader import RecordError
from pytest_rlregress.records.stories import moment, shorten_path
from pytest_rlregress.util.text import clean, code_span, plural, quoted

#: Raised when a key of the JSON changes its meaning.
FORMAT = 1
_ALLOWED = "regressed-since=DATE, =RECORD or =PACKAGE==VERSION; only-on=PLATFORM or =RECORD; differs"
_REGRESSED = (Kind.REGRESSION, Kind.HARDWARE_CHANGE, Kind.UNCONFIRMED)
_TESTS = 100  # in the text; JSON has all
_NAME = 300  # characters of a test


@dataclass(frozen=True)
class Listed:
    """A test of a list.

    Attributes:
        here: Its result in the place or the record that was asked for; None if the record doesn't have the test.
        others: Its result in each place that it is compared with, by the place's name.
        change: What became of it, in a list of what regressed.
        is_pair: Whether the only other result is the one before.
    """

    test: str
    here: Point | None
    others: Mapping[str, Point | None]
    change: Change | None = None
    is_pair: bool = False


@dataclass(frozen=True)
class Listing:
    """A list of tests.

    Attributes:
        title: What they have in common.
        compared: How many tests the list was chosen from.
        only_here: How many tests are bad here and have no result elsewhere; they are not in the list.
        problems: Files that are not among the records.
    """

    title: str
    tests: Sequence[Listed]
    compared: int
    only_here: int = 0
    problems: Sequence[Problem] = ()


def make_list(history: History, asked: str, night: datetime.date | None = None) -> Listing:
    """Return the list that was asked for.

    Args:
        history: The records.
        asked: ``regressed-since=WHEN``, ``only-on=WHERE`` or ``differs``.
        night: Of ``regressed-since``, whose results count; by default that of the newest record.

    Raises:
        RecordError: There is no such list, or the records lack what it needs.
    """
    return replace(_choose(history, asked, night), problems=history.problems)


def _choose(history: History, asked: str, night: datetime.date | None) -> Listing:
    kind, _, argument = asked.partition("=")
    if night and kind != "regressed-since":
        raise RecordError("--night goes with --list regressed-since=WHEN only")
    if kind == "regressed-since" and argument:
        return _list_regressed(history, argument, night)
    if kind == "only-on" and argument:
        return _list_only_on(history, argument)
    if asked == "differs":
        return _list_differing(history)
    raise RecordError(f"--list {quoted(asked)} isn't a list. Allowed: {_ALLOWED}")


def _list_regressed(history: History, when: str, night: datetime.date | None) -> Listing:
    begins = _find_begins(history, when)
    changes = [change for platform in judge_night(history, night).platforms for change in platform.changes]
    compared = [change for change in changes if change.now and (change.before or change.kind is Kind.KNOWN)]
    listed = [
        Listed(change.test, change.now, {"last good": change.before}, change)
        for change in compared
        if change.kind in _REGRESSED and change.since and change.platform in begins
        if change.since.run.start >= begins[change.platform]
    ]
    return Listing(f"Regressed since {quoted(when)}", listed, len(compared))


def _find_begins(history: History, when: str) -> dict[str, float]:
    """Return for each platform the start of the first run that counts; none for one that has no such run."""
    try:
        date = datetime.date.fromisoformat(when)
    except ValueError:
        pass
    else:
        return _find_starts(run for run in history.runs if run.night >= date)
    name, equal, version = when.partition("==")
    if equal:
        found = _find_starts(run for run in history.runs if run.lock.version(name) == version)
        if found:
            return found
        raise RecordError(f"no record has {quoted(when)}. Allowed: {_ALLOWED}")
    begin = find_run(history, Path(when)).start
    return _find_starts(run for run in history.runs if run.start >= begin)


def _find_starts(ascending: Iterable[RecordedRun]) -> dict[str, float]:
    starts: dict[str, float] = {}
    for run in ascending:
        starts.setdefault(run.platform, run.start)
    return starts


def _list_only_on(history: History, where: str) -> Listing:
    if where in history.timelines:
        places = {
            name: _take_latest(tests)
            for name, tests in history.timelines.items()
            if name == where or _get_profile(name) != _get_profile(where)
        }
    elif Path(where).exists():
        here = find_run(history, Path(where))
        places = {_name(run): _take_results(history, run) for run in history.runs}
        where = _name(here)
    else:
        known = ", ".join(map(quoted, history.timelines))
        raise RecordError(f"{where} is neither a platform of the records nor a record. The platforms: {known}")
    if len(places) < 2:
        raise RecordError(f"there is nothing beside {where} in the records that it could be compared with")
    listed, compared, only_here = [], 0, 0
    for test, point in places[where].items():
        if not point.says_something:
            continue
        others = {name: tests[test] for name, tests in places.items() if name != where and test in tests}
        others = {name: one for name, one in others.items() if one.says_something}
        bad = point.rank > Rank.GOOD
        compared += bool(others)
        only_here += bad and not others
        if bad and others and all(one.rank is Rank.GOOD for one in others.values()):
            listed.append(Listed(test, point, others))
    return Listing(f"Bad on {quoted(where)} only", listed, compared, only_here)


def _list_differing(history: History) -> Listing:
    if len(history.runs) != 2:
        raise RecordError(f"--list differs takes two records, and these are {len(history.runs)}")
    before, after = history.runs
    old, new = (_take_results(history, run) for run in history.runs)
    listed = []
    for test in sorted({*old, *new}):
        was, now = old.get(test), new.get(test)
        if (was and was.word) != (now and now.word):
            listed.append(Listed(test, now, {_name(before): was}, is_pair=True))
    title = f"Differs between {quoted(_name(before))} and {quoted(_name(after))}"
    return Listing(title, listed, len({*old, *new}))


def _get_profile(platform: str) -> str:
    """Return the hardware of a platform: quick runs are a platform of their own."""
    return platform.partition(",")[0]


def _take_latest(tests: Mapping[str, Sequence[Point]]) -> dict[str, Point]:
    """Return each test's latest result that says something."""
    return {
        test: next((point for point in reversed(points) if point.says_something), points[-1])
        for test, points in tests.items()
    }


def _take_results(history: History, run: RecordedRun) -> dict[str, Point]:
    tests = history.timelines.get(run.platform, {})
    return {test: point for test, points in tests.items() for point in points if point.run is run}


def _name(run: RecordedRun) -> str:
    return shorten_path(run.path)


def tell_list(found: Listing) -> str:
    """Render a list as Markdown."""
    lines = [f"## {found.title}: {len(found.tests)} of {plural(found.compared, 'test')} compared", ""]
    lines += [f"- {_tell_listed(one)}" for one in found.tests[:_TESTS]]
    if len(found.tests) > _TESTS:
        lines.append(f"- and {len(found.tests) - _TESTS} more, which --json lists")
    if found.only_here:
        lines += ["", f"{plural(found.only_here, 'more test')} bad here had no result elsewhere: nothing is known."]
    for problem in found.problems:
        lines += ["", f"Not read: {code_span(clean(shorten_path(problem.path)))}: {quoted(problem.text)}"]
    return "\n".join(lines).rstrip("\n") + "\n"


def _tell_listed(one: Listed) -> str:
    now = _show_word(one.here)
    note = f": {code_span(clean(one.here.note))}" if one.here and one.here.note else ""
    name = code_span(clean(one.test, _NAME))
    if one.change and one.change.since and one.change.before:
        kind = "" if one.change.kind is Kind.REGRESSION else f" ({one.change.kind})"
        told = f"{quoted(one.change.before.word)} -> {now} since {moment(one.change.since.run)}{kind}"
        return f"{name} on {quoted(one.change.platform)}: {told}{note}"
    if one.is_pair:
        [was] = one.others.values()
        return f"{name}: {_show_word(was)} -> {now}{note}"
    return f"{name}: {now}, {', '.join(_tell_other(*other) for other in one.others.items())}{note}"


def _tell_other(name: str, point: Point | None) -> str:
    return f"{_show_word(point)} on {quoted(name)}"


def _show_word(point: Point | None) -> str:
    return quoted(point.word) if point else "not there"


def list_as_json(found: Listing) -> dict[str, Any]:
    """Render a list for scripts."""
    return {
        "format": FORMAT,
        "title": found.title,
        "compared": found.compared,
        "only_here": found.only_here,
        "tests": list(map(_as_json, found.tests)),
        "problems": [{"file": shorten_path(problem.path), "text": problem.text} for problem in found.problems],
    }


def _as_json(one: Listed) -> dict[str, Any]:
    known = one.here or next(point for point in one.others.values() if point)
    since = one.change and one.change.since
    return {
        "test": one.test,
        "failure": known.failure or None,
        "side": known.side or None,
        "kind": one.change and one.change.kind,
        "since": since and _point(since),
        "here": one.here and _point(one.here),
        "others": {name: point and _point(point) for name, point in one.others.items()},
    }


def _point(point: Point) -> dict[str, Any]:
    about = {"platform": point.run.platform, "word": point.word, "note": point.note}
    return {**about, "night": point.night.isoformat(), "record": _name(point.run)}
