"""Which tests a run was asked for, as far as pytest's arguments say."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Adds tests to those that are chosen, where the others take some out.
LONG = "--rl-long"
QUICK = "--rl-quick"
_SELECT = (LONG, QUICK, "-k", "-m", "--deselect", "--ignore", "--lf", "--last-failed", "--sw", "--stepwise")
#: Options that choose no tests and whose value may be the next argument.
_OTHER = re.compile(
    "-[npocrW]|--(hw|rl-(?!strict|inline|long|quick|update)[a-z-]+|numprocesses|dist|tx|maxfail|tb|durations|color|timeout|log-[a-z-]+|"
    "override-ini|config-file|rootdir|basetemp|confcutdir|junit-?xml)"
)


def selecting(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments that choose tests: paths, ``-k``, ``-m``, ``--rl-long`` and their like. Empty for the default run.

    A value of an option that is not known here counts too: that is no harm where every night has the same.
    """
    found: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if _OTHER.fullmatch(argument):
            next(rest, None)
        elif not argument.startswith("-") or argument.startswith(_SELECT):
            found.append(argument)
    return tuple(found)


def is_quick(arguments: Sequence[str]) -> bool:
    """Whether the arguments are a quick run's: its records are a platform of their own, never mixed with whole runs."""
    return QUICK in arguments and LONG not in arguments


def narrowing(asked: Sequence[str]) -> tuple[str, ...]:
    """Those of the arguments that choose tests which leave some out."""
    return tuple(argument for argument in asked if argument != LONG)


def covers(asked: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a run by the first arguments has every test of one by the others, as far as arguments say."""
    return narrowing(asked) == narrowing(other) and (LONG in asked or LONG not in other)
