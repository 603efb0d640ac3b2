"""The headline of a night or a comparison: the first sentence of every report, and its colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pytest_rlregress.commands.report.classify import says_something
from pytest_rlregress.commands.report.facts import TOLD, WORSE, Change, Kind, Night, PlatformNight
from pytest_rlregress.failures.verdicts import Rank
from pytest_rlregress.util.text import plural, quoted


def choose_colour(night: Night) -> Literal["green", "amber", "red"]:
    """Return red if something got worse for certain, green if all that should have run did and no test fails."""
    if any(change.trips for change in night.changes):
        return "red"
    good = all(platform.word == "good" and not _is_cut(platform) for platform in night.platforms)
    return "green" if night.platforms and good else "amber"


def write_comparison_headline(changes: Iterable[Change]) -> str:
    """Write the headline of a comparison of two runs."""
    changes = list(changes)
    counts = Counter(change.kind for change in changes)
    parts = [_count(counts[kind], kind) for kind in TOLD if counts[kind]]
    if not any(counts[kind] for kind in TOLD if kind is not Kind.REPAIRED):
        parts.append("nothing got worse")
    known = sum(change.fails_as_before for change in changes)
    if known:
        parts.append(f"{_count_failing(known)} as before")
    return ", ".join(parts)


def write_headline(night: Night) -> str:
    """Write the headline of a night."""
    ran = [platform for platform in night.platforms if platform.runs]
    if not ran:
        return "Nothing ran this night."
    several = len(night.platforms) > 1
    later = [platform for platform in ran if platform.last is not None]
    silent = [platform.name for platform in later if not any(map(says_something, platform.results.values()))]
    compared = [platform.name for platform in later if platform.name not in silent]
    parts = [part for kind in WORSE for part in _tell_worse(kind, ran)]
    if compared and not parts:
        parts.append(f"nothing got worse on {_list(compared)}")
    parts += [_tell_first(platform, several) for platform in ran if platform.last is None]
    for kind in (Kind.NEW_FAILING, Kind.LOST, Kind.REPAIRED):
        where = [change.platform for platform in later for change in platform.changes if change.kind is kind]
        if where:
            parts.append(f"{_count(len(where), kind)} on {_list(sorted(set(where)))}")
    known = [change.platform for platform in ran for change in platform.changes if change.fails_as_before]
    if known:
        on = f" on {_list(sorted(set(known)))}" if several else ""
        parts.append(f"{_count_failing(len(known))} as before{on}")
    if silent:
        parts.append(f"no test ran on {_list(silent)}")
    if cut := [platform.name for platform in ran if _is_cut(platform)]:
        parts.append(f"not every run on {_list(cut)} was complete")
    if missing := [platform.name for platform in night.platforms if not platform.runs]:
        parts.append(f"{_list(missing)} did not run")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}.{'' if later else ' Nothing to compare with yet.'}"


def _is_cut(platform: PlatformNight) -> bool:
    return any(run.extra.state != "complete" for run in platform.runs)


def _tell_first(platform: PlatformNight, several: bool) -> str:
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


def _tell_worse(kind: Kind, platforms: Sequence[PlatformNight]) -> Iterator[str]:
    """``2 regressions on h100 since 2026-11-18``, one for each platform that has any."""
    for platform in platforms:
        changes = [change for change in platform.changes if change.kind == kind]
        if changes:
            nights = sorted({change.since.night for change in changes if change.since and kind is not Kind.FLAKE})
            since = f" since {nights[0]}" if nights else ""
            more = " and later" if len(nights) > 1 else ""
            yield f"{_count(len(changes), kind)} on {quoted(platform.name)}{since}{more}"


def _count_failing(count: int, noun: str = "test") -> str:
    return f"{plural(count, noun)} fail{'s' if count == 1 else ''}"


def _count(count: int, kind: Kind) -> str:
    tests = plural(count, "test")
    return {
        Kind.HARDWARE_CHANGE: f"{tests} worse on changed hardware",
        Kind.UNCONFIRMED: f"{tests} worse in one run (unconfirmed)",
        Kind.NEW_FAILING: _count_failing(count, "new test"),
        Kind.LOST: f"{tests} lost",
        Kind.REPAIRED: f"{tests} repaired",
    }.get(kind, plural(count, kind))


def _list(names: Sequence[str]) -> str:
    names = list(map(quoted, names))
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
