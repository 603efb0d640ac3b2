"""The headline of a night or a comparison: the first sentence of every report, and its colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_rlregress.commands.report.judgement.classify import says_something
from pytest_rlregress.commands.report.judgement.facts import Change, Night, PlatformNight
from pytest_rlregress.commands.report.judgement.kinds import TOLD, WORSE, Kind
from pytest_rlregress.failures.verdicts import Rank
from pytest_rlregress.util.text import plural, quoted

Colour = Literal["green", "amber", "red"]


@dataclass(frozen=True)
class Headline:
    """The first sentence of a report, and its colour.

    Attributes:
        colour: ``red`` if something got worse for certain; ``green`` if all that should have run did and no test fails
            (a documented failure that is reproduced does not); else ``amber``.
    """

    text: str
    colour: Colour


def of_night(night: Night) -> Headline:
    """Write the headline of a night."""
    return Headline(_text(night), _colour(night))


def of_comparison(changes: Iterable[Change]) -> str:
    """Write the headline of a comparison of two runs."""
    changes = list(changes)
    counts = Counter(change.kind for change in changes)
    parts = [_counted(counts[kind], kind) for kind in TOLD if counts[kind]]
    if not any(counts[kind] for kind in TOLD if kind is not Kind.REPAIRED):
        parts.append("nothing got worse")
    known = sum(change.fails_as_before for change in changes)
    if known:
        parts.append(f"{_failing(known)} as before")
    return ", ".join(parts)


def _colour(night: Night) -> Colour:
    if any(change.trips for change in night.changes):
        return "red"
    complete = all(run.state == "complete" for platform in night.platforms for run in platform.runs)
    good = all(platform.word == "good" for platform in night.platforms)
    return "green" if night.platforms and complete and good else "amber"


def _text(night: Night) -> str:
    ran = [platform for platform in night.platforms if platform.runs]
    if not ran:
        return "Nothing ran this night."
    several = len(night.platforms) > 1
    first = [platform for platform in ran if platform.last is None]
    later = [platform for platform in ran if platform.last is not None]
    silent = [platform.name for platform in later if not any(map(says_something, platform.results.values()))]
    compared = [platform.name for platform in later if platform.name not in silent]
    parts = [part for kind in WORSE for part in _worse(kind, ran)]
    if compared and not parts:
        parts.append(f"nothing got worse on {_listed(compared)}")
    parts += [_first(platform, several) for platform in first]
    for kind in (Kind.NEW_FAILING, Kind.LOST, Kind.REPAIRED):
        where = [change.platform for platform in later for change in platform.changes if change.kind is kind]
        if where:
            parts.append(f"{_counted(len(where), kind)} on {_listed(sorted(set(where)))}")
    known = [change.platform for platform in ran for change in platform.changes if change.fails_as_before]
    on = f" on {_listed(sorted(set(known)))}" if several else ""
    if known:
        parts.append(f"{_failing(len(known))} as before{on}")
    cut = [platform.name for platform in ran if any(run.state != "complete" for run in platform.runs)]
    missing = [platform.name for platform in night.platforms if not platform.runs]
    parts += [f"no test ran on {_listed(silent)}"] if silent else []
    parts += [f"not every run on {_listed(cut)} was complete"] if cut else []
    parts += [f"{_listed(missing)} did not run"] if missing else []
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}.{'' if later else ' Nothing to compare with yet.'}"


def _first(platform: PlatformNight, several: bool) -> str:
    """``first run: 19 of 379 tests fail``: of a platform's first night."""
    runs = "first run" if len(platform.runs) == 1 else f"first {len(platform.runs)} runs"
    where = f" on {quoted(platform.name)}" if several else ""
    said = [point.rank for point in platform.results.values()]
    failing, silent, tests = said.count(Rank.FAILING), said.count(Rank.NOTHING), plural(len(said), "test")
    if silent == len(said):
        told = "no test ran"
    elif failing:
        told = f"{failing} of {tests} fail{'s' if failing == 1 else ''}"
    else:
        told = f"none of {tests} fails, {silent} did not run" if silent else f"all {tests} pass"
    return f"{runs}{where}: {told}"


def _worse(kind: Kind, platforms: Sequence[PlatformNight]) -> list[str]:
    """``2 regressions on h100 since 2026-11-18``, one for each platform that has any."""
    said = []
    for platform in platforms:
        changes = [change for change in platform.changes if change.kind == kind]
        if not changes:
            continue
        nights = sorted({change.since.run.night for change in changes if change.since})
        since = f" since {nights[0]}" if nights and kind is not Kind.FLAKE else ""
        more = " and later" if since and len(nights) > 1 else ""
        said.append(f"{_counted(len(changes), kind)} on {quoted(platform.name)}{since}{more}")
    return said


def _failing(count: int) -> str:
    return f"{plural(count, 'test')} fail{'s' if count == 1 else ''}"


def _counted(count: int, kind: Kind) -> str:
    tests = plural(count, "test")
    return {
        Kind.HARDWARE_CHANGE: f"{tests} worse on changed hardware",
        Kind.UNCONFIRMED: f"{tests} worse in one run (unconfirmed)",
        Kind.NEW_FAILING: f"{plural(count, 'new test')} fail{'s' if count == 1 else ''}",
        Kind.LOST: f"{tests} lost",
        Kind.REPAIRED: f"{tests} repaired",
    }.get(kind, plural(count, kind))


def _listed(names: Sequence[str]) -> str:
    names = list(map(quoted, names))
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
