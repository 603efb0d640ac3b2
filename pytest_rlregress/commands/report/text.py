"""Tell a night, or a comparison, as Markdown that a terminal can show as it is.

It goes to the terminal, to a job's summary and into issues. Names of tests and what they say are others' texts: they
stand in code spans, where GitHub makes no mention, link or markup of them.
"""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_rlregress.commands.report.judgement import headline, next_commands
from pytest_rlregress.commands.report.judgement.comparison import RunComparison
from pytest_rlregress.commands.report.judgement.facts import (
    Change,
    Flaky,
    Night,
    PlatformNight,
    Point,
    Problem,
    RecordedRun,
)
from pytest_rlregress.commands.report.judgement.kinds import TOLD, Kind
from pytest_rlregress.util.text import clean, code_span, plural, quoted

_PACKAGES = 4
_KNOWN = 3
_AGAIN = 8  # tests that a command names; more are told by their files
_TESTS = 10  # of one story
_PROBLEMS = 5
_CHARACTERS = 60_000  # an issue takes 65536
_NOTHING = "nothing that a record knows of"

Rates = Mapping[tuple[str, str], str]  # by platform and test


def tell(found: Night | RunComparison) -> str:
    """Render a night, or a comparison, the most urgent first."""
    return _night(found) if isinstance(found, Night) else _comparison(found)


def _night(night: Night) -> str:
    title = f"Night of {night.date} (times are UTC): {headline.of_night(night).text}"
    head = [line for platform in night.platforms for line in _platform(platform)]
    return _page(title, head, night.changes, night.problems, _rates(night.flaky))


def _comparison(found: RunComparison) -> str:
    runs = [("before", found.before), *(("after", run) for run in found.after)]
    head = [
        f"- {role}: {quoted(run.platform)}, {tell_run(run)}: {code_span(clean(next_commands.near(run.path)))}"
        for role, run in runs
    ]
    head.append(f"- differ: {_differ(found.before, found.after[0], told_ends(found.changes))}")
    others = [run for run in found.after[1:] if run.conditions != found.after[0].conditions]
    if others:
        head.append(f"- the runs after it differ too: {_differ(found.after[0], others[0])}")
    title = f"Compared (times are UTC): {headline.of_comparison(found.changes)}"
    return _page(title, head, found.changes, found.problems, {})


def since_last(found: RunComparison) -> list[str]:
    """Tell in a few lines what changed since the last record."""
    lines = [f"Since the last record ({moment(found.before)}): {headline.of_comparison(found.changes)}."]
    lines.append(f"Changed in between: {_differ(found.before, found.after[0], told_ends(found.changes))}")
    told: dict[tuple[str, ...], list[Change]] = {}
    for one in sorted((one for one in found.changes if one.kind in TOLD), key=lambda one: TOLD.index(one.kind)):
        failure, side = one.latest.failure or one.test, one.latest.side or ""
        told.setdefault((one.kind, failure, side, arrow(one)), []).append(one)
    lines += [_of_failure(changes) for changes in [*told.values()][:_TESTS]]
    if len(told) > _TESTS:
        paths = [next_commands.near(run.path) for run in (found.before, *found.after)]
        lines.append(f"- and {len(told) - _TESTS} more: {shlex.join(['rlregress', 'report', '--compare', *paths])}")
    return lines


def _of_failure(changes: Sequence[Change]) -> str:
    """Describe in a line how tests of one side of a failure changed, or a test of none."""
    first = changes[0]
    if not first.latest.failure or len(changes) == 1:
        return f"- {first.kind}: {_test(first)}"
    tests = plural(len(changes), "guard" if first.latest.side == "guards" else "reproduction")
    return f"- {first.kind}: {quoted(first.latest.failure)}: {tests} {arrow(first)}{_why(first)}"


def _page(title: str, head: Sequence[str], changes: Iterable[Change], problems: Sequence[Problem], rates: Rates) -> str:
    text = "\n".join([f"## {title}", "", *head, ""])
    groups = _groups(changes)
    for index, group in enumerate(groups):
        more = "\n".join(["", *_story(group, rates), ""])
        if len(text) + len(more) > _CHARACTERS:
            text += f"\nAnd {len(groups) - index} more, which do not fit here.\n"
            break
        text += more
    return text + "\n".join(_problems(problems))


def _problems(problems: Sequence[Problem]) -> list[str]:
    told = [f"- {code_span(clean(next_commands.near(one.path)))}: {quoted(one.text)}" for one in problems[:_PROBLEMS]]
    if len(problems) > _PROBLEMS:
        told.append(f"- and {len(problems) - _PROBLEMS} more")
    return ["", "### About the records", "", *told, ""] if told else []


def _platform(night: PlatformNight) -> Iterator[str]:
    """Tell of a platform's night: how many tests of each word, the answer of its last run, what is news."""
    name = quoted(night.name)
    if not night.runs:
        last = f"the last run was {moment(night.last)}" if night.last else "there is no earlier run either"
        yield f"- {name}: NO RUN: {last}"
        return
    counted = ", ".join(f"{count} {word}" for word, count in night.tally)
    runs = ", ".join(f"{moment(one).rpartition(' ')[2]}{_odd(one)}" for one in night.runs)
    asked = {clean(" ".join(one.only)) for one in night.runs}
    only = f"; only {' and '.join(map(code_span, sorted(asked)))}" if "" not in asked else ""
    tests = f"{plural(len(night.results), 'test')}: {counted or 'none'}"
    yield f"- {name}: {tests} ({plural(len(night.runs), 'run')}: {runs}{only})"
    yield from (f"  - {line}" for line in night.runs[-1].extra.answer)
    if night.last and _stack(night.last) != _stack(night.runs[-1]):
        yield f"  - since the run before: {_differ(night.last, night.runs[-1], told_ends(night.changes))}"
    known = [change for change in night.changes if change.fails_as_before]
    if known:
        more = f", and {len(known) - _KNOWN} more" if len(known) > _KNOWN else ""
        told = ", ".join(f"{code_span(clean(change.test))} ({arrow(change)})" for change in known[:_KNOWN])
        yield f"  - known, failing as before: {told}{more}"


def _stack(run: RecordedRun) -> tuple[str, str | None]:
    return run.lock.digest, run.driver


def tell_run(run: RecordedRun) -> str:
    """Say when a run began, and what is unusual about it."""
    asked = clean(" ".join(run.only))
    return f"{moment(run)}{_odd(run)}{f', only {code_span(asked)}' if asked else ''}"


def _odd(run: RecordedRun) -> str:
    state = "" if run.state == "complete" else f" {run.state}"
    return f"{state} with files not committed" if run.dirty else state


def _groups(changes: Iterable[Change]) -> list[list[Change]]:
    """Group tests of a platform that changed in the same way at the same time, the most urgent first."""
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        if change.kind is Kind.REPAIRED:
            groups.setdefault((change.kind, change.platform, change.latest.run.id), []).append(change)
        elif change.kind in TOLD:
            ends = tuple(point and point.run.id for point in (change.before, change.since))
            groups.setdefault((change.kind, change.platform, ends, change.nights, change.runs), []).append(change)
    return sorted(groups.values(), key=lambda group: (TOLD.index(group[0].kind), group[0].platform))


def _story(changes: Sequence[Change], rates: Rates) -> list[str]:
    """Tell of changes of one kind between the same runs: what happened, the tests, what to run for the gravest."""
    first = max(changes, key=lambda change: change.latest.rank)
    lines = [f"### {first.kind.capitalize()} on {quoted(first.platform)}: {_happened(first)}", ""]
    for change in changes[:_TESTS]:
        rate = "" if change.kind is Kind.REPAIRED else rates.get((change.platform, change.test), "")
        lines.append(f"- {_test(change)}{f' ({rate})' if rate else ''}")
    if len(changes) > _TESTS:
        lines.append(f"- and {len(changes) - _TESTS} more")
    before, since = first.before, first.since
    if before is None or since is None or first.kind in (Kind.REPAIRED, Kind.FLAKE):
        return lines
    lines += ["", f"Changed in between: {_differ(before.run, since.run, _ends(changes))}"]
    if first.kind in (Kind.LOST, Kind.HARDWARE_CHANGE):
        return lines
    command = next_commands.bisect(before.run, since.run, first.test, first.latest.failure)
    todo = "Find the cause"
    if first.kind is Kind.UNCONFIRMED or not command:
        todo = "Run it again to confirm" if first.kind is Kind.UNCONFIRMED else "See it fail here"
        command = next_commands.again(since.run, again_by([change.test for change in changes]))
    return [*lines, "", f"{todo}:", "", f"    {clean(shlex.join(command))}"]


def _happened(change: Change) -> str:
    """Say when it was good or seen first, since when it is bad, and in how many runs."""
    before, since, now = change.before, change.since, change.now
    if change.kind is Kind.FLAKE:
        return _wavering(change)
    if change.kind is Kind.NEW_FAILING and since:
        return f"first seen {moment(since.run)}, nothing to compare with"
    if before is None or change.kind is Kind.REPAIRED:
        return "good again"
    if change.kind is Kind.LOST and since:
        return f"ran {moment(before.run)}, cannot run since {moment(since.run)}"
    if change.kind is Kind.LOST:
        ended = f"; tonight's run: {now.run.state}" if now and now.run.state != "complete" else ""
        return f"did not run, though they did on {moment(before.run)}{ended}"
    assert since is not None
    if change.kind is Kind.UNCONFIRMED:
        return f"last good {moment(before.run)}, bad {moment(since.run)}, in the only run since"
    more = ". Other hardware: not comparable" if change.kind is Kind.HARDWARE_CHANGE else ""
    times = f"{plural(change.runs, 'run')} in {plural(change.nights, 'night')}{more}"
    return f"last good {moment(before.run)}, bad since {moment(since.run)}: {times}"


def _wavering(change: Change) -> str:
    good, bad = change.before, change.now
    if bad is not None and bad.flaky:
        return "attempts within a run disagree"
    if good is None or bad is None:
        return "disagrees with itself, with nothing changed"
    return f"{bad.word} {moment(bad.run)} and {good.word} {moment(good.run)}, with nothing changed"


def _test(change: Change) -> str:
    """Describe one test: its name, ``held -> regressed``, and why."""
    return f"{code_span(clean(change.test))} {arrow(change)}{_why(change)}"


def _why(change: Change) -> str:
    silent = change.kind is Kind.REPAIRED or change.now is None
    note = "" if silent else clean(change.latest.note)
    return f": {code_span(note)}" if note else ""


def arrow(change: Change) -> str:
    """Describe a test's results: ``held -> regressed``."""
    now = change.now.word if change.now else "not there"
    if change.kind is Kind.FLAKE:
        return now if change.before == change.now or change.before is None else f"{change.before.word}, {now}"
    words = [point.word for point in (change.before, change.since, change.now) if point]
    words = [word for index, word in enumerate(words) if not index or word != words[index - 1]]
    return " -> ".join(words if change.now else [*words, now])


def between(before: RecordedRun, after: RecordedRun, about: Iterable[tuple[Point | None, Point]] = ()) -> str:
    """Describe what differs between two runs, first what the failures of these tests are about.

    Args:
        before: The earlier run.
        after: The later run.
        about: What came of each of these tests before and after.
    """
    about = list(about)
    subjects = sorted({f"subject {old.subject} -> {new.subject}" for old, new in about if old and _replaced(old, new)})
    packages = next_commands.changed(before, after, [new for _, new in about])
    parts = [*subjects]
    if packages:
        more = [f"and {len(packages) - _PACKAGES} more"] if len(packages) > _PACKAGES else []
        parts.append(", ".join([*map(str, packages[:_PACKAGES]), *more]))
    differing = {
        "profile": (before.platform, after.platform),
        "hardware": (hardware(before), hardware(after)),
        "driver": (before.driver or "none", after.driver or "none"),
        "commit": ((before.commit or "none")[:12], (after.commit or "none")[:12]),
    }
    if before.settings and after.settings:
        told = {"rlregress_subjects"} if subjects else set()
        differing |= {
            name: (before.settings.get(name, "default"), after.settings.get(name, "default"))
            for name in sorted({*before.settings, *after.settings} - told)
        }
    parts += [f"{what} {old} -> {new}" for what, (old, new) in differing.items() if old != new]
    if after.dirty:
        parts.append("files not committed")
    return clean("; ".join(parts)) or _NOTHING


def _differ(before: RecordedRun, after: RecordedRun, about: Iterable[tuple[Point | None, Point]] = ()) -> str:
    """Describe as Markdown what differs between two runs: ``between`` has the arguments."""
    found = between(before, after, about)
    return found if found == _NOTHING else code_span(found)


def _replaced(old: Point, new: Point) -> bool:
    return bool(old.subject and new.subject and old.subject != new.subject)


def told_ends(changes: Iterable[Change]) -> list[tuple[Point | None, Point]]:
    """List what each test that is told of was and is: what differs is listed for these first."""
    return _ends(change for change in changes if change.kind in TOLD)


def _ends(changes: Iterable[Change]) -> list[tuple[Point | None, Point]]:
    return [(change.before, change.latest) for change in changes]


def again_by(tests: Sequence[str]) -> list[str]:
    """Name these tests for pytest: themselves, or their files where they are many."""
    return list(tests) if len(tests) <= _AGAIN else sorted({test.partition("::")[0] for test in tests})


def hardware(run: RecordedRun) -> str:
    """Describe a run's hardware: its GPUs, the CPU where there is none."""
    if run.devices:
        counted = Counter(run.devices)
        return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())
    model, cores = run.hardware
    return f"{model}, {cores} cores" if model and cores else str(model or "no GPU")


def _rates(found: Iterable[Flaky]) -> dict[tuple[str, str], str]:
    """Say how often tests were flaky, by platform and test."""
    return {
        (one.platform, one.test): f"flaky: {one.bad} of {plural(one.runs, 'run')} bad, nothing changed" for one in found
    }


def moment(run: RecordedRun) -> str:
    """Write when a run began, UTC."""
    return f"{datetime.datetime.fromtimestamp(run.start, datetime.UTC):%Y-%m-%d %H:%M}"
