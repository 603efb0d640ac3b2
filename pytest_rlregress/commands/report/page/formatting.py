"""Format what the page shows: tones, times, and the meaning of its words."""

from __future__ import annotations

import datetime

from pytest_rlregress.commands.report.judgement.facts import Night
from pytest_rlregress.commands.report.judgement.kinds import QUIET, Kind
from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.util.text import plural as plural


def tone(word: str) -> str:
    """``good``, ``documented``, ``bad`` or ``quiet``: how a verdict, or pytest's word, is drawn."""
    tones = {Rank.NOTHING: "quiet", Rank.GOOD: "good", Rank.DOCUMENTED: "documented", Rank.FAILING: "bad"}
    return tones[rank(word)]


def kind_tone(kind: Kind) -> str:
    """Return the tone of a kind of change."""
    if kind is Kind.REGRESSION:
        return "bad"
    return "quiet" if kind in QUIET else "good" if kind is Kind.REPAIRED else "warn"


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
