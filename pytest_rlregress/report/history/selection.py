"""Which tests a run was asked for, as far as pytest's arguments say."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SELECT = ("-k", "-m", "--deselect", "--ignore", "--lf", "--last-failed", "--sw", "--stepwise")
#: Options that choose no tests and whose value may be the next argument.
_OTHER = re.compile(
    "-[npocrW]|--(hw|rl-(?!strict|update)[a-z-]+|numprocesses|dist|tx|maxfail|tb|durations|color|timeout|log-[a-z-]+|"
    "override-ini|config-file|rootdir|basetemp|confcutdir|junit-?xml)"
)


def selecting(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments that choose tests: paths, ``-k``, ``-m`` and their like. Empty for a run of all.

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
