"""The sentences about changes that terminal, Markdown and JSON share."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_rlregress.report.judgement import next_commands
from pytest_rlregress.report.judgement.comparison import RunComparison
from pytest_rlregress.report.judgement.facts import Change, Flaky, PlatformNight, Point, RecordedRun
from pytest_rlregress.report.judgement.kinds import TOLD, Kind
from pytest_rlregress.util.text import plural

_PACKAGES = 4
_KNOWN = 3
_AGAIN = 8  # tests that a command names; more are told by their files


@dataclass(frozen=True)
class ChangeSentences:
    """Tests of a platform that changed in the same way at the same time.

    Attributes:
        happened: When it was good or seen first, since when it is bad, and in how many runs.
        between: What else changed in between; "" where that is not the question.
        todo: What the command is for.
        command: What to run next; empty where there is nothing.
    """

    kind: Kind
    platform: str
    changes: tuple[Change, ...]
    happened: str
    between: str = ""
    todo: str = ""
    command: tuple[str, ...] = ()


def stories(changes: Iterable[Change]) -> list[ChangeSentences]:
    """Group the changes into sentences, the most urgent first."""
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        if change.kind in TOLD:
            ends = tuple(point and point.run.id for point in (change.before, change.since))
            run = change.latest.run.id if change.kind is Kind.REPAIRED else ends
            alike = (change.nights, change.runs) if change.kind is not Kind.REPAIRED else ()
            groups.setdefault((change.kind, change.platform, run, alike), []).append(change)
    found = [_story(group) for group in groups.values()]
    return sorted(found, key=lambda story: (TOLD.index(story.kind), story.platform))


def _story(changes: Sequence[Change]) -> ChangeSentences:
    """Tell of changes of one kind between the same runs; the gravest has the command."""
    first = max(changes, key=lambda change: change.latest.rank)
    kind, before, since, now = first.kind, first.before, first.since, first.now
    story = ChangeSentences(kind, first.platform, tuple(changes), "good again")
    if kind is Kind.FLAKE:
        retried = now is not None and now.flaky
        return replace(story, happened="attempts within a run disagree" if retried else _wavering(first))
    if kind is Kind.MISSING and before:
        ended = f"; tonight's run: {now.run.state}" if now and now.run.state != "complete" else ""
        return replace(story, happened=f"did not run, though they did on {moment(before.run)}{ended}")
    if kind is Kind.NEW_FAILING and since:
        return replace(story, happened=f"first seen {moment(since.run)}, nothing to compare with")
    if kind is Kind.REPAIRED or before is None or since is None:
        return story
    happened = f"last good {moment(before.run)}, bad since {moment(since.run)}"
    story = replace(story, between=between(before.run, since.run, _ends(changes)))
    if kind is Kind.LOST_COVERAGE:
        return replace(story, happened=f"ran {moment(before.run)}, cannot run since {moment(since.run)}")
    if kind is Kind.UNCONFIRMED:
        command = next_commands.again(since.run, again_by([change.test for change in changes]))
        happened = f"last good {moment(before.run)}, bad {moment(since.run)}, in the only run since"
        return replace(story, happened=happened, todo="run it again to confirm", command=command)
    happened += f": {plural(first.runs, 'run')} in {plural(first.nights, 'night')}"
    if kind is Kind.HARDWARE_CHANGE:
        return replace(story, happened=f"{happened}. Other hardware: not comparable")
    command = next_commands.bisect(before.run, since.run, first.test, first.latest.failure)
    if command:
        return replace(story, happened=happened, todo="find the cause", command=command)
    command = next_commands.again(since.run, again_by([change.test for change in changes]))
    return replace(story, happened=happened, todo="see it fail here", command=command)


def _wavering(change: Change) -> str:
    good, bad = change.before, change.now
    if good is None or bad is None:
        return "disagrees with itself, with nothing changed"
    return f"{bad.word} {moment(bad.run)} and {good.word} {moment(good.run)}, with nothing changed"


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
        more = [f"and {len(packages) - _PACKAGES} more"] * (len(packages) > _PACKAGES)
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
    return "; ".join(parts) or "nothing that a record knows of"


def _replaced(old: Point, new: Point) -> bool:
    return bool(old.subject and new.subject and old.subject != new.subject)


def compared(found: RunComparison) -> str:
    """Describe what differs between the runs of a comparison, first what the failures that changed are about."""
    return between(found.before, found.after[0], told_ends(found.changes))


def told_ends(changes: Iterable[Change]) -> list[tuple[Point | None, Point]]:
    """What each test that is told of was and is: what differs is listed for these first."""
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


def arrow(change: Change) -> str:
    """Describe one test: ``held -> regressed``."""
    now = change.now.word if change.now else "not there"
    if change.kind is Kind.FLAKE:
        return now if change.before == change.now or change.before is None else f"{change.before.word}, {now}"
    words = [point.word for point in (change.before, change.since, change.now) if point]
    words = [word for index, word in enumerate(words) if not index or word != words[index - 1]]
    return " -> ".join(words if change.now else [*words, now])


def note(change: Change) -> str:
    """Return the reason in a line; "" where the record has none."""
    if change.kind is Kind.REPAIRED or (change.kind is Kind.MISSING and change.now is None):
        return ""
    return clean(change.latest.note)


def unlike(runs: Sequence[RecordedRun]) -> list[str]:
    """Warn where runs that ought to be reruns are none."""
    others = [run for run in runs[1:] if run.conditions != runs[0].conditions]
    return [f"  the runs after it differ too: {between(runs[0], run)}" for run in others[:1]]


def platform(night: PlatformNight) -> str:
    """Describe a platform's night in a line."""
    if not night.runs:
        last = f"the last run was {moment(night.last)}" if night.last else "there is no earlier run either"
        return f"NO RUN: {last}"
    counted = ", ".join(f"{count} {word}" for word, count in night.tally)
    runs = ", ".join(f"{_clock(one)}{_odd(one)}" for one in night.runs)
    asked = {clean(" ".join(one.only)) for one in night.runs}
    only = f"; only {' and '.join(sorted(asked))}" if "" not in asked else ""
    return f"{plural(len(night.results), 'test')}: {counted or 'none'} ({plural(len(night.runs), 'run')}: {runs}{only})"


def run(recorded: RecordedRun) -> str:
    """Describe when a run began, and what is unusual about it."""
    asked = clean(" ".join(recorded.only))
    return f"{moment(recorded)}{_odd(recorded)}{f', only {asked}' if asked else ''}"


def _odd(recorded: RecordedRun) -> str:
    return f" {recorded.state}" * (recorded.state != "complete") + " with files not committed" * recorded.dirty


def _clock(recorded: RecordedRun) -> str:
    return moment(recorded).rpartition(" ")[2]


def news(night: PlatformNight) -> list[str]:
    """List in lines what was installed since the last run, and what fails as before."""
    lines = []
    if night.runs and night.last and _stack(night.last) != _stack(night.runs[-1]):
        lines.append(f"since the run before: {between(night.last, night.runs[-1], told_ends(night.changes))}")
    known = [change for change in night.changes if change.fails_as_before]
    if known:
        more = f", and {len(known) - _KNOWN} more" * (len(known) > _KNOWN)
        told = ", ".join(f"{clean(change.test)} ({arrow(change)})" for change in known[:_KNOWN])
        lines.append(f"known, failing as before: {told}{more}")
    return lines


def _stack(run: RecordedRun) -> tuple[str, str | None]:
    return run.lock.digest, run.driver


def rates(found: Iterable[Flaky]) -> dict[tuple[str, str], str]:
    """List how often tests were flaky, by platform and test."""
    return {
        (one.platform, one.test): f"flaky: {one.bad} of {plural(one.runs, 'run')} bad, nothing changed" for one in found
    }


def moment(recorded: RecordedRun) -> str:
    """When a run began, UTC."""
    return f"{datetime.datetime.fromtimestamp(recorded.start, datetime.UTC):%Y-%m-%d %H:%M}"


def clean(text: str) -> str:
    """Put a text from outside on one line, without terminal control characters."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
