"""Group what changed into stories: tests that changed alike between the same runs, and what to do about them."""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_rlregress.commands.report.judgement import next_commands
from pytest_rlregress.commands.report.judgement.facts import Change, Point, RecordedRun
from pytest_rlregress.commands.report.judgement.kinds import TOLD, Kind
from pytest_rlregress.util.text import clean, plural

#: Two runs in which nothing differs that a record has.
NOTHING = "nothing that a record knows of"

_PACKAGES = 4
_AGAIN = 8  # tests that a command names; more are told by their files


@dataclass(frozen=True)
class Story:
    """Tests of a platform that changed in the same way at the same time, and what to do.

    Attributes:
        happened: When it was good, since when it is bad.
        between: What differs between these two runs, "" where they are not compared.
        todo: What the command is for, "" where there is none.
        command: To be typed in a shell.
    """

    kind: Kind
    platform: str
    happened: str
    changes: Sequence[Change]
    between: str = ""
    todo: str = ""
    command: str = ""

    @property
    def by_failure(self) -> list[list[Change]]:
        """The changes, those of one failure's side with the same results together."""
        groups: dict[tuple[str, str, str], list[Change]] = {}
        for change in self.changes:
            failure, side = change.latest.failure or change.test, change.latest.side or ""
            groups.setdefault((failure, side, arrow(change)), []).append(change)
        return [*groups.values()]


def stories(changes: Iterable[Change]) -> list[Story]:
    """Group tests of a platform that changed in the same way at the same time, the most urgent first."""
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        if change.kind is Kind.REPAIRED:
            groups.setdefault((change.kind, change.platform, change.latest.run.id), []).append(change)
        elif change.kind in TOLD:
            ends = tuple(point and point.run.id for point in (change.before, change.since))
            groups.setdefault((change.kind, change.platform, ends, change.nights, change.runs), []).append(change)
    found = sorted(groups.values(), key=lambda group: (TOLD.index(group[0].kind), group[0].platform))
    return list(map(_story, found))


def count_tests(changes: Sequence[Change]) -> str:
    """Count tests of one side of a failure: ``3 guards``."""
    words = {"guards": "guard", "reproduces": "reproduction"}
    return plural(len(changes), words.get(changes[0].latest.side or "", "test"))


def _story(changes: Sequence[Change]) -> Story:
    """Tell of changes of one kind between the same runs: what happened, and what to run for the gravest."""
    first = max(changes, key=lambda change: change.latest.rank)
    before, since = first.before, first.since
    story = Story(first.kind, first.platform, _happened(first), changes)
    if before is None or since is None or first.kind in (Kind.REPAIRED, Kind.FLAKE):
        return story
    story = replace(story, between=between(before.run, since.run, _ends(changes)))
    if first.kind in (Kind.LOST, Kind.HARDWARE_CHANGE):
        return story
    command = next_commands.bisect(before.run, since.run, first.test, first.latest.failure)
    todo = "Find the cause"
    if first.kind is Kind.UNCONFIRMED or not command:
        todo = "Run it again to confirm" if first.kind is Kind.UNCONFIRMED else "See it fail here"
        command = next_commands.again(since.run, again_by([change.test for change in changes]))
    return replace(story, todo=todo, command=clean(shlex.join(command)))


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
    pythons = before.extra.stack.python, after.extra.stack.python
    differing = {
        **({"Python": pythons} if all(pythons) else {}),
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
    return clean("; ".join(parts)) or NOTHING


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


def moment(run: RecordedRun) -> str:
    """Write when a run began, UTC."""
    return f"{datetime.datetime.fromtimestamp(run.start, datetime.UTC):%Y-%m-%d %H:%M}"
