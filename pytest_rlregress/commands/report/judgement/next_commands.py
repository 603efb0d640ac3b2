"""Which packages differ between two runs, and what to run next: the bisect, or the tests again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_rlregress.commands.report.judgement.facts import Point, RecordedRun
from pytest_rlregress.failures import catalogue
from pytest_rlregress.records.selection import LONG, QUICK
from pytest_rlregress.stack import COMPONENTS
from pytest_rlregress.stack.locks import PackageChange, differences

_PLACES = {name: place for place, one in enumerate(COMPONENTS.values()) for name in one.distributions}


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
    """Shorten a path inside the current folder."""
    found = path.absolute()
    return os.path.relpath(found) if found.is_relative_to(Path.cwd()) else str(found)


def _shipped(test: str) -> bool:
    file = test.partition("::")[0]
    return not Path(file).is_absolute() and (catalogue.SHIPPED / file).is_file()


def _module(test: str) -> str:
    """Name a shipped test as ``pytest --pyargs`` takes it."""
    file, colons, rest = test.partition("::")
    return "pytest_rlregress.scenarios." + file.removesuffix(".py").replace("/", ".") + colons + rest
