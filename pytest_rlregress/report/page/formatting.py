"""Format what the page shows: tones, times, and the meaning of its words."""

from __future__ import annotations

import datetime
from collections import Counter

from pytest_rlregress.report.judgement.facts import Night, PlatformNight, Upgrade
from pytest_rlregress.report.judgement.headline import Colour
from pytest_rlregress.report.judgement.kinds import QUIET, TRIPS, Kind
from pytest_rlregress.report.sentences import between
from pytest_rlregress.report.sentences import hardware as hardware
from pytest_rlregress.util.text import plural as plural
from pytest_rlregress.verdicts import Rank, rank

#: Tone of the headline by its colour.
HEADLINES: dict[Colour, str] = {"green": "good", "amber": "warn", "red": "bad"}

#: Of a night of a platform: its tone, and a sign beside the colour.
CELLS = {
    "good": ("good", ""),
    "worse": ("bad", "✕"),
    "flake": ("warn", "~"),
    "new failing": ("warn", "+"),
    "known": ("known", "•"),
    "interrupted": ("warn", "/"),
    "no run": ("no-run", ""),
}


def tone(word: str) -> str:
    """``good``, ``documented``, ``bad`` or ``quiet``: how a verdict, or pytest's word, is drawn."""
    tones = {Rank.NOTHING: "quiet", Rank.GOOD: "good", Rank.DOCUMENTED: "documented", Rank.FAILING: "bad"}
    return tones[rank(word)]


def kind_tone(kind: Kind) -> str:
    """The tone of a kind of change."""
    if kind in TRIPS:
        return "bad"
    return "quiet" if kind in QUIET else "good" if kind in (Kind.REPAIRED, Kind.NEW) else "warn"


def late(night: Night, newest: datetime.date | None, now: datetime.datetime) -> str:
    """Warn that there ought to be a newer run, or that there is a newer night than this; else empty."""
    if newest is None:
        return ""
    if newest > night.date:
        return f"There is a newer night than this one: {newest}."
    missed = (now.astimezone(datetime.UTC).date() - newest).days
    if missed <= 0:
        return ""
    if missed == 1:
        return f"Nothing has run in the night to {newest + datetime.timedelta(days=1)} yet."
    return f"Nothing has run since: {missed} nights without a run, to {newest + datetime.timedelta(days=missed)}."


def exchanged(upgrade: Upgrade) -> str:
    """What differs between the two runs of an upgrade, in a line."""
    return between(upgrade.before, upgrade.after, upgrade.flipped).replace(" -> ", " → ")


def strip(platform: PlatformNight) -> str:
    """Describe the cells of a platform in words."""
    counts = Counter(cell.word for cell in platform.cells)
    said = []
    for word, count in counts.most_common():
        name = "without a run" if word == "no run" else word
        dates = [str(cell.date) for cell in platform.cells if cell.word == word]
        listed = "" if word == "good" else f" ({', '.join(dates[-8:])}{', and earlier' if len(dates) > 8 else ''})"
        said.append(f"{count} {name}{listed}")
    return f"{platform.name}, the last {len(platform.cells)} nights: {'; '.join(said)}"


def moment(start: float) -> str:
    """Seconds since 1970 as a time that is the same for every reader."""
    return f"{datetime.datetime.fromtimestamp(start, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def duration(seconds: float | None) -> str:
    """Seconds, or minutes and hours of many."""
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def version(line: str | None) -> str:
    """The version in a line of a lock; the whole line of what has none, "none" for no package."""
    return "none" if line is None else line.partition("==")[2] or line
