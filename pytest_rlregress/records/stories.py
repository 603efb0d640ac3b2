"""Group what changed into stories: tests that changed alike between the same runs, what differs, what to run next."""

from __future__ import annotations

import datetime
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.causes import BadTest, find_shared
from pytest_rlregress.records.changes import TOLD, Change, Kind
from pytest_rlregress.records.history import Point, RecordedRun
from pytest_rlregress.records.record_types import LONG, QUICK
from pytest_rlregress.stack import COMPONENTS
from pytest_rlregress.stack.locks import PackageChange, differences
from pytest_rlregress.util.surroundings import working_folder
from pytest_rlregress.util.text import clean, plural

#: Two runs in which nothing differs that a record has.
NOTHING = "nothing that the records show"

_PACKAGES = 4
_AGAIN = 8  # tests that a command names; more are told by their files
_PLACES = {name: place for place, one in enumerate(COMPONENTS.values()) for name in one.distributions}


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


def tell_stories(changes: Iterable[Change]) -> list[Story]:
    """Group what changed on a platform in the same way at the same time, the most urgent first.

    Numbers of training steps are apart from tests: among many of these nobody would see them.
    """
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        about = change.kind, change.platform, change.number is None
        if change.kind is Kind.REPAIRED:
            groups.setdefault((*about, change.latest.run.id), []).append(change)
        elif change.kind in TOLD:
            ends = tuple(point and point.run.id for point in (change.before, change.since))
            groups.setdefault((*about, ends, change.nights, change.runs), []).append(change)
    found = sorted(groups.values(), key=lambda group: (TOLD.index(group[0].kind), group[0].platform))
    return list(map(_make_story, found))


def _make_story(changes: Sequence[Change]) -> Story:
    """Tell of changes of one kind between the same runs: what happened, and what to run for the gravest."""
    first = max(changes, key=lambda change: change.latest.rank)
    kind, before, since = first.kind, first.before, first.since
    between, todo, command = "", "", []
    if before and since and kind is not Kind.FLAKE:
        between = describe_difference(before.run, since.run, changes)
        if kind is Kind.REGRESSION and not first.number:  # bisect looks for a test that fails
            todo, command = "Find the cause", make_bisect(before.run, since.run, first.test, first.latest.failure)
        if kind in (Kind.REGRESSION, Kind.UNCONFIRMED) and not command:
            if kind is Kind.UNCONFIRMED:
                todo = "Run it again to confirm"
            else:
                todo = "Measure it again" if first.number else "See it fail here"
            tests = list(dict.fromkeys(change.test for change in changes))
            if len(tests) > _AGAIN:
                tests = sorted({test.partition("::")[0] for test in tests})
            command = make_rerun(since.run, tests)
    return Story(kind, first.platform, _describe_course(first), changes, between, todo, clean(shlex.join(command)))


def _describe_course(change: Change) -> str:
    """Say when it was good or seen first, since when it is bad, and in how many runs."""
    before, since, now = change.before, change.since, change.now
    if change.kind is Kind.FLAKE:
        if now is None or before is None or now.flaky:
            return "attempts within a run disagree"
        return f"{now.word} {moment(now.run)} and {before.word} {moment(before.run)}, with nothing changed"
    if change.kind is Kind.NEW_FAILING and since:
        return f"first seen {moment(since.run)}, nothing to compare with"
    if before is None or change.kind is Kind.REPAIRED:
        return "good again"
    if change.kind is Kind.LOST and since:
        return f"ran {moment(before.run)}, cannot run since {moment(since.run)}"
    if since is None:
        ended = f"; tonight's run: {now.run.extra.state}" if now and now.run.extra.state != "complete" else ""
        return f"did not run, though they did on {moment(before.run)}{ended}"
    if change.kind is Kind.UNCONFIRMED:
        return f"last good {moment(before.run)}, bad {moment(since.run)}, in the only run since"
    more = ". Other hardware: not comparable" if change.kind is Kind.HARDWARE_CHANGE else ""
    times = f"{plural(change.runs, 'run')} in {plural(change.nights, 'night')}{more}"
    return f"last good {moment(before.run)}, bad since {moment(since.run)}: {times}"


def group_alike(changes: Iterable[Change]) -> list[list[Change]]:
    """Put together the tests of one failure's side, or of one cause, that changed in the same way."""
    changes = [*changes]
    bad = [BadTest(one, one.latest.failure, one.latest.side, one.latest.cause) for one in changes if one.latest.fails]
    shared = {one.cause for one in find_shared(bad)}
    groups: dict[tuple[str, str, str, str], list[Change]] = {}
    for change in changes:
        latest, words = change.latest, show_words(change)
        about = f"{change.test} {change.number.name}" if change.number else latest.failure or change.test
        key = (change.kind, about, latest.side, words)
        if latest.cause in shared:
            key = (change.kind, latest.cause, "", "")
        groups.setdefault(key, []).append(change)
    return [*groups.values()]


def find_common_cause(changes: Sequence[Change]) -> str:
    """Return the cause that the tests of several failures or sides have in common; "" for those of one side."""
    return changes[0].latest.cause if len({(one.latest.failure, one.latest.side) for one in changes}) > 1 else ""


def show_words(change: Change) -> str:
    """Describe a test's results: ``held -> regressed``."""
    now = change.now.word if change.now else "not there"
    if change.kind is Kind.FLAKE:
        return now if change.before == change.now or change.before is None else f"{change.before.word}, {now}"
    words = [point.word for point in (change.before, change.since, change.now) if point]
    words = [word for index, word in enumerate(words) if not index or word != words[index - 1]]
    return " -> ".join(words if change.now else [*words, now])


def moment(run: RecordedRun) -> str:
    """Write when a run began, UTC."""
    return f"{datetime.datetime.fromtimestamp(run.start, datetime.UTC):%Y-%m-%d %H:%M}"


# -- what differs between two runs -------------------------------------------------------------------------------------


def describe_difference(before: RecordedRun, after: RecordedRun, about: Iterable[Change] = ()) -> str:
    """Describe what differs between two runs; first what the failures of the told changes are about."""
    about = [change for change in about if change.kind in TOLD]
    ends = [(change.before.subject, change.latest.subject) for change in about if change.before]
    subjects = sorted({f"subject {old} -> {new}" for old, new in ends if old and new and old != new})
    packages = list_changed(before, after, [change.latest for change in about])
    parts = [*subjects]
    if packages:
        more = [f"and {len(packages) - _PACKAGES} more"] if len(packages) > _PACKAGES else []
        parts.append(", ".join([*map(str, packages[:_PACKAGES]), *more]))
    pythons = before.extra.stack.python, after.extra.stack.python
    differing = {
        **({"Python": pythons} if all(pythons) else {}),
        "profile": (before.platform, after.platform),
        "hardware": (describe_hardware(before), describe_hardware(after)),
        "driver": (before.extra.hardware.driver or "none", after.extra.hardware.driver or "none"),
        "commit": ((before.commit or "none")[:12], (after.commit or "none")[:12]),
    }
    old_settings, new_settings = before.call.settings, after.call.settings
    if old_settings and new_settings:
        told = {"rlregress_subjects"} if subjects else set()
        for name in sorted({*old_settings, *new_settings} - told):
            differing[name] = old_settings.get(name, "default"), new_settings.get(name, "default")
    parts += [f"{name} {old} -> {new}" for name, (old, new) in differing.items() if old != new]
    if after.dirty:
        parts.append("files not committed")
    return clean("; ".join(parts)) or NOTHING


def list_changed(before: RecordedRun, after: RecordedRun, about: Iterable[Point] = ()) -> list[PackageChange]:
    """List the packages that differ between two runs.

    First come the components that the failures of these tests are about, then the others in the order of
    ``COMPONENTS``, then all else by name.
    """
    named = {name for point in about for name in point.components.split(",")} & {*COMPONENTS}
    first = {name for component in named for name in COMPONENTS[component].distributions}
    found = differences(before.lock, after.lock)
    return sorted(found, key=lambda one: (one.name not in first, _PLACES.get(one.name, len(_PLACES)), one.name))


def describe_hardware(run: RecordedRun) -> str:
    """Describe a run's hardware: its GPUs, the CPU where there is none."""
    if run.devices:
        counted = Counter(run.devices)
        return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())
    model, cores = run.hardware
    return f"{model}, {cores} cores" if model and cores else str(model or "no GPU")


# -- what to run next --------------------------------------------------------------------------------------------------


def make_bisect(before: RecordedRun, after: RecordedRun, test: str, failure: str) -> list[str]:
    """Return the arguments of the bisect between two runs; empty where neither packages nor commit differ.

    Two records hold both environments as they were, whatever is installed where it is asked. Commits can be bisected
    where the current folder is a project that can be installed.
    """
    if before.lock.digest != after.lock.digest:
        ends = ["--from-record", shorten_path(before.path), "--to-record", shorten_path(after.path)]
    elif before.commit and after.commit and before.commit != after.commit and _is_project(working_folder()):
        ends = ["--revisions", f"{before.commit[:12]}..{after.commit[:12]}", "--repo", "."]
    else:
        return []
    hw = ["--hw", after.profile] if after.profile else []
    return ["rlregress", "bisect", *ends, *hw, failure if failure and is_shipped_test(test) else test]


def _is_project(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg"))


def make_rerun(run: RecordedRun, tests: Sequence[str]) -> list[str]:
    """Return pytest's arguments that run some tests again as a run did, into the same folder of records."""
    hw = [f"--hw={run.profile}"] if run.profile else []
    more = [flag for flag in (LONG, QUICK) if flag in run.call.selection]
    packages = ["--pyargs"] if any(map(is_shipped_test, tests)) else []
    named = [name_module(test) if is_shipped_test(test) else test for test in tests]
    return ["pytest", *hw, *more, f"--rl-record-dir={shorten_path(run.path.parent)}", *packages, *named]


def is_shipped_test(test: str) -> bool:
    """Return whether a test of that name is one of the package's scenarios."""
    file = test.partition("::")[0]
    return not os.path.isabs(file) and os.path.isfile(catalogue.SHIPPED / file)


def name_module(test: str) -> str:
    """Name a shipped test as ``pytest --pyargs`` takes it."""
    file, colons, rest = test.partition("::")
    return "pytest_rlregress.scenarios." + file.removesuffix(".py").replace("/", ".") + colons + rest


def shorten_path(path: Path) -> str:
    """Shorten a path inside the current folder."""
    here = working_folder()
    found = here / path
    return os.path.relpath(found, here) if found.is_relative_to(here) else str(found)
