"""Find upgrades between runs of a platform, the tests that flipped there, and the bisect that finds the cause."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path

from pytest_rlregress import catalogue
from pytest_rlregress.report.history.selection import LONG, QUICK
from pytest_rlregress.report.judgement.classify import varies
from pytest_rlregress.report.judgement.facts import Flip, Point, RecordedRun, Upgrade
from pytest_rlregress.stack import COMPONENTS
from pytest_rlregress.stack.locks import PackageChange, differences
from pytest_rlregress.verdicts import Rank

_PLACES = {name: place for place, one in enumerate(COMPONENTS.values()) for name in one.distributions}


def find_upgrades(platform_runs: Sequence[RecordedRun], timelines: Mapping[str, Sequence[Point]]) -> list[Upgrade]:
    """Find the upgrades of a platform, earliest first; changes of the commit alone only where a test flipped.

    A test flips where all that is known of it until the next upgrade is worse, or better, than the last before: what
    disagrees with itself after an upgrade is not the upgrade's doing.
    """
    stretches = [list(runs) for _, runs in groupby(platform_runs, key=_installed)]
    place = {run.id: index for index, runs in enumerate(stretches) for run in runs}
    worse: list[list[Flip]] = [[] for _ in stretches]
    better: list[list[Flip]] = [[] for _ in stretches]
    for test, points in timelines.items():
        for before, after in _steps(points, place) if varies(points) else ():
            ranks, was = [point.rank for point in after], before.rank
            if min(ranks) > was:
                worse[place[after[0].run.id]].append(Flip(test, before, after[0]))
            elif max(ranks) < was:
                better[place[after[0].run.id]].append(Flip(test, before, after[0]))
    found = []
    for index, (earlier, later) in enumerate(pairwise(stretches), 1):
        last, first = earlier[-1], later[0]
        packages = changed(last, first, [flip.after for flip in worse[index] + better[index]])
        driver = (last.driver, first.driver) if last.driver != first.driver else None
        commit = (last.commit, first.commit) if last.commit != first.commit else None
        if not (packages or driver or worse[index] or better[index]):
            continue
        flips = sorted(worse[index], key=lambda flip: -flip.after.rank)
        command = shlex.join(bisect(last, first, flips[0].test, flips[0].after.failure)) if flips else ""
        found.append(
            Upgrade(last.platform, last, first, packages, driver, commit, tuple(flips), tuple(better[index]), command)
        )
    return found


def _installed(run: RecordedRun) -> tuple[str, str | None, str | None]:
    return run.lock.digest, run.driver, run.commit


def _steps(points: Sequence[Point], place: Mapping[str, int]) -> list[tuple[Point, list[Point]]]:
    """For each stretch with results of a test, but the first: its last result before, and those in it."""
    said = (point for point in points if point.rank is not Rank.NOTHING and point.run.id in place)
    groups = [list(group) for _, group in groupby(said, key=lambda point: place[point.run.id])]
    return [(earlier[-1], later) for earlier, later in pairwise(groups)]


def changed(before: RecordedRun, after: RecordedRun, about: Iterable[Point] = ()) -> tuple[PackageChange, ...]:
    """List the packages that differ between two runs.

    First come the components that the failures of these tests are about, then the others in the order of
    ``COMPONENTS``, then all else by name.
    """
    named = {name for point in about for name in point.components.split(",")} & {*COMPONENTS}
    first = {name for component in named for name in COMPONENTS[component].distributions}
    found = differences(before.lock, after.lock)
    return tuple(sorted(found, key=lambda one: (one.name not in first, _PLACES.get(one.name, len(_PLACES)), one.name)))


def bisect(before: RecordedRun, after: RecordedRun, test: str, failure: str | None) -> tuple[str, ...]:
    """Return the arguments of the bisect between two runs; empty where neither packages nor commit differ.

    Two records hold both environments as they were, whatever is installed where it is asked. Commits can be bisected
    where the current folder is a project that can be installed.
    """
    profile = _profile(after)
    hw = ("--hw", profile) if profile else ()
    if before.lock.digest != after.lock.digest:
        ends = "--from-record", near(before.path), "--to-record", near(after.path)
    elif before.commit and after.commit and before.commit != after.commit and _is_project(Path.cwd()):
        ends = "--revisions", f"{before.commit[:12]}..{after.commit[:12]}", "--repo", "."
    else:
        return ()
    return "rlregress", "bisect", *ends, *hw, failure if failure and _shipped(test) else test


def _is_project(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg"))


def _profile(run: RecordedRun) -> str:
    """Return the hardware profile that a run's platform names, "" for none."""
    profile = run.platform.partition(",")[0]
    return "" if profile == "unknown" else profile


def again(run: RecordedRun, tests: Sequence[str]) -> tuple[str, ...]:
    """Return pytest's arguments that run some tests again as a run did, into the same folder of records."""
    profile = _profile(run)
    hw = (f"--hw={profile}",) if profile else ()
    named = [_module(test) if _shipped(test) else test for test in tests]
    packages = ("--pyargs",) if any(map(_shipped, tests)) else ()
    more = [flag for flag in (LONG, QUICK) if flag in run.asked]
    return "pytest", *hw, *more, f"--rl-record-dir={near(run.path.parent)}", *packages, *named


def near(path: Path) -> str:
    """Shorten a path that lies in the current folder."""
    found = path.absolute()
    return os.path.relpath(found) if found.is_relative_to(Path.cwd()) else str(found)


def _shipped(test: str) -> bool:
    file = test.partition("::")[0]
    return not Path(file).is_absolute() and (catalogue.SHIPPED / file).is_file()


def _module(test: str) -> str:
    """Name a shipped test as ``pytest --pyargs`` takes it."""
    file, colons, rest = test.partition("::")
    return "pytest_rlregress.scenarios." + file.removesuffix(".py").replace("/", ".") + colons + rest
