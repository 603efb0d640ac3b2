"""What a test that gave no verdict was in want of, read from the sentence of its skip. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_rlregress.records.record_types import RecordedTest
from pytest_rlregress.util.text import clean

_BROKEN = re.compile(r"(\S+) is broken: ")
_UNDRIVEN = re.compile(r"(?P<subject>(?P<release>\S+ \d\S*)|.+?) can't be driven this way: ")
_LACKING = re.compile(r", (?:for )?which (?P<release>\S+ \d\S*) ")
_ABSENT = re.compile(r" is not installed\b|^needs (?:a GPU|\d+ GPUs|wsl2|windows|macos)\b")
_NAME_ENDS = re.compile(r" is not installed|, this |, (?:for )?which |: | \(")


@dataclass(frozen=True)
class Want:
    """What a test was in want of.

    Attributes:
        name: As the answer names it: ``a GPU``, ``verl-trainer that works``.
        release: The installed release that lacks it, as in ``verl 0.4.1``; "" where none is named.
        absent: Whether hardware, a system or a component that is not installed is wanting.
    """

    name: str
    release: str = ""
    absent: bool = False


def read_want(test: RecordedTest) -> Want:
    """Return what a test that was skipped, or is unavailable, was in want of."""
    reason = clean(test.extra.note or test.message)
    if broken := _BROKEN.match(reason):
        return Want(f"{broken[1]} that works")
    if undriven := _UNDRIVEN.match(reason):
        return Want(f"a way to drive {undriven['subject']}", undriven["release"] or "")
    lacking = _LACKING.search(reason)
    name = _NAME_ENDS.split(re.sub(r"^(?:needs|drives) ", "", reason), maxsplit=1)[0]
    return Want(name, lacking["release"] if lacking else "", _ABSENT.search(reason) is not None)
