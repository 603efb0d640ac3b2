"""Read what a project requires of its environment: a requirements file, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pytest_rlregress.stack.locks import LockError, numbered_lines

_OTHER_FILE = re.compile(r"(?:-r|-c|--requirement|--constraint)[ =]*(.+)")


@dataclass(frozen=True)
class Constraint:
    """A version condition on a package, should that be installed.

    Attributes:
        name: The package, normalised.
        line: The condition: ``transformers<6``.
        source: File and line.
    """

    name: str
    line: str
    source: str

    def __str__(self) -> str:
        """In words: ``transformers<6 (requirements.txt: line 3)``."""
        return f"{self.line} ({self.source})"


def read_constraints(path: Path) -> tuple[Constraint, ...]:
    """Read the version conditions of a requirements file, and of those that it names with -r or -c.

    Where packages come from, and projects and addresses to install, are not its business here.

    Raises:
        LockError: It cannot be read, or a line is no requirement.
    """
    return tuple(_read(path, set()))


def _read(path: Path, seen: set[Path]) -> Iterator[Constraint]:
    seen.add(path.resolve())
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path}: cannot be read: {error}") from None
    for number, line in numbered_lines(text):
        stripped = re.sub(r"(^|\s)#.*|\s--hash=\S+", "", line).strip()
        other = _OTHER_FILE.fullmatch(stripped)
        if other is not None:
            named = path.parent / other[1].strip()
            if named.resolve() not in seen:
                yield from _read(named, seen)
        elif stripped and not stripped.startswith("-"):
            yield from _parse(stripped, f"{path}: line {number}")


def _parse(line: str, source: str) -> Iterator[Constraint]:
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        reason = " ".join(str(error).split())
        raise LockError(f"{source}: {line!r} is no requirement: {reason}") from None
    applies = requirement.marker is None or requirement.marker.evaluate()
    if applies and requirement.specifier:
        name = canonicalize_name(requirement.name)
        yield Constraint(name, f"{name}{requirement.specifier}", source)
