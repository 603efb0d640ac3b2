"""What a command looked at and what it could not look at: the one type of audit, diagnose, preflight and report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from pytest_rlregress.util.text import wrapped


class Result(Enum):
    """How a look at something ended, with the exit code that says so."""

    CLEAN = "clean", 0
    FINDINGS = "findings", 1
    #: Nothing is found in what was checked, and not all was that could have been.
    PARTIAL = "partial", 3
    #: Nothing was checked, so nothing is known.
    UNCHECKED = "unchecked", 3

    @property
    def word(self) -> str:
        """What ``--json`` calls it."""
        return self.value[0]

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return self.value[1]


@dataclass(frozen=True)
class Unchecked:
    """Why something could not be checked.

    Attributes:
        missing: What would let it be checked: keys, options, columns, files; none where it doesn't apply.
    """

    why: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """What was checked, and what was not and why.

    Attributes:
        checked: Names of checks or of what was read.
        unchecked: The others, each with its reason.
    """

    checked: tuple[str, ...] = ()
    unchecked: tuple[tuple[str, Unchecked], ...] = ()

    @classmethod
    def of(cls, checked: Iterable[str], unchecked: Mapping[str, Unchecked]) -> Coverage:
        """Return the coverage of checks of which each was made or has one reason."""
        return cls(tuple(checked), tuple(unchecked.items()))

    @property
    def missing(self) -> tuple[str, ...]:
        """All that would let more be checked."""
        return tuple(dict.fromkeys(key for _, one in self.unchecked for key in one.missing))

    def judge(self, found: object) -> Result:
        """Return the result: what is found counts first, and only what was looked at can be clean."""
        if found:
            return Result.FINDINGS
        if not self.checked:
            return Result.UNCHECKED
        return Result.PARTIAL if self.missing else Result.CLEAN

    def headline(self, found: str, none: str = "nothing found") -> str:
        """Say what was found, ``none`` only of what was checked."""
        if not found and not self.checked:
            return "nothing checked"
        return (found or none) + (", checked in part" if self.missing else "")

    def lines(self) -> list[str]:
        """Return the last lines of a report: what was checked, what was not by reason, and what would change that."""
        by_reason: dict[str, list[str]] = {}
        for check, one in sorted(self.unchecked, key=lambda pair: (pair[1].why, pair[0])):
            by_reason.setdefault(one.why, []).append(check)
        lines = [f"checked: {', '.join(self.checked) or 'nothing'}"]
        lines += [f"not checked: {', '.join(dict.fromkeys(checks))}: {why}" for why, checks in by_reason.items()]
        if self.missing:
            lines.append(f"to check these too, give: {', '.join(self.missing)}")
        return [part for line in lines for part in wrapped(line, rest="  ")]
