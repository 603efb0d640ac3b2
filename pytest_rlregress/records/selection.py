"""Compare what chose the tests of two runs."""

from __future__ import annotations

from collections.abc import Sequence

#: Adds tests to those that are chosen, where the others take some out.
LONG = "--rl-long"
QUICK = "--rl-quick"


def is_quick(asked: Sequence[str]) -> bool:
    """Return whether it was a quick run: its records are a platform of their own, never mixed with whole runs."""
    return QUICK in asked and LONG not in asked


def narrowing(asked: Sequence[str]) -> tuple[str, ...]:
    """Return those of the choices that leave some tests out."""
    return tuple(choice for choice in asked if choice != LONG)


def covers(asked: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether a run that chose tests so has every test of the other one, as far as the choices say."""
    return narrowing(asked) == narrowing(other) and (LONG in asked or LONG not in other)
