"""What moved for a run: compare what each release makes of it, from one end to the other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pytest_rlregress.stack.class_sources import UNKNOWN

#: A value that has no default: a run that doesn't set it ends with an error.
REQUIRED = "(must be set)"
_MISSING = object()


class Kind(Enum):
    """A section of the answer, in its order."""

    KEY = "keys of yours that are gone or refused"
    DEFAULT = "defaults that you inherit and that moved"
    NAME = "names and calls that no longer bind"
    ENGINE = "engine defaults that the trainer leaves open and that moved"
    METADATA = "what the metadata say beside it"


@dataclass(frozen=True)
class Finding:
    """Something that moved between two releases.

    Attributes:
        kind: Its section.
        key: A key, or a name.
        change: ``gone``, ``refused``, ``moved``, ``back`` (moved and back), ``vanished`` (a default that is gone),
            ``new`` (a key that switches something on), ``unbound``, ``requires``.
        before: The value or the text in the release where it begins.
        after: That in the release where it ends.
        release: The release that moved it; "" where a release between wasn't read.
        package: Whose move it is.
        instead: The new name, or what to write; "" where nothing says it.
        sure: Whether the package itself says ``instead``.
        why: A sentence beside it: the package's own message, a refusal's reason.
        place: Where the user wrote it.
        concerns: Whether it concerns the run: what doesn't is shown with ``-v`` alone and doesn't count.
        rank: Orders a section: meaning before memory before speed.
    """

    kind: Kind
    key: str
    change: str
    before: Any = None
    after: Any = None
    release: str = ""
    package: str = ""
    instead: str = ""
    sure: bool = True
    why: str = ""
    place: str = ""
    concerns: bool = True
    rank: int = 0


@dataclass(frozen=True)
class Snapshot:
    """What one release makes of a run.

    Attributes:
        version: The release.
        values: By key, the run's own values laid over the release's.
        refused: The run's keys that it refuses, each with the reason; "" where it just has no such key.
        packages: By key, whose default it is, if not the trainer's.
    """

    version: str
    values: Mapping[str, Any]
    refused: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)


def find_turn(snapshots: Sequence[Snapshot], holds: Callable[[Snapshot], bool]) -> str:
    """Return the release from which on something holds up to the last one, or to which it held if they go back."""
    at = len(snapshots) - 1
    while at > 0 and holds(snapshots[at - 1]):
        at -= 1
    return snapshots[at].version


def find_refused(snapshots: Sequence[Snapshot], package: str, places: Mapping[str, str]) -> Iterator[Finding]:
    """Find the keys of a run that the last release refuses."""
    last = snapshots[-1]
    for key, why in last.refused.items():
        turn = find_turn(snapshots, lambda one, key=key: key in one.refused)  # type: ignore[misc]
        before = key in snapshots[0].refused
        yield Finding(
            Kind.KEY,
            key,
            "refused" if why else "gone",
            release="" if before else turn,
            package=package,
            why="; ".join(filter(None, [why.rstrip("."), f"{snapshots[0].version} refuses it too" if before else ""])),
            place=places.get(key, ""),
        )


def find_moved(snapshots: Sequence[Snapshot], package: str, given: Sequence[str]) -> Iterator[Finding]:
    """Find the defaults that both ends have, that a run inherits, and that differ, or differed between them."""
    first, last = snapshots[0], snapshots[-1]
    for key, before in first.values.items():
        after = last.values.get(key, _MISSING)
        if after is _MISSING or is_given(key, given) or UNKNOWN in (before, after):
            continue
        if before != after and [before] != after and before != [after]:
            turn = find_turn(snapshots, lambda one: one.values.get(key, _MISSING) == after)  # noqa: B023
            whose = last.packages.get(key, package)
            yield Finding(Kind.DEFAULT, key, "moved", before, after, turn, whose, why=_tell_path(snapshots, key))
        elif any(one.values.get(key, before) not in (before, UNKNOWN) for one in snapshots[1:-1]):
            why = _tell_path(snapshots, key)
            yield Finding(Kind.DEFAULT, key, "back", before, after, "", package, why=why, concerns=False)


def _tell_path(snapshots: Sequence[Snapshot], key: str) -> str:
    """Tell the values that a key had on the way, where there are more than two."""
    path: list[tuple[Any, str]] = []
    for one in snapshots:
        value = one.values.get(key, _MISSING)
        if value is not _MISSING and value != UNKNOWN and (not path or path[-1][0] != value):
            path.append((value, one.version))
    if len(path) <= 2:
        return ""
    return " → ".join([show(path[0][0]), *(f"{show(value)} ({version})" for value, version in path[1:])])


def is_given(key: str, given: Sequence[str]) -> bool:
    """Return whether a run sets a key, a table that it is in, or something in it."""
    return any(key == one or key.startswith(f"{one}.") or one.startswith(f"{key}.") for one in given)


def show(value: Any) -> str:
    """Write a value as YAML does, on a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = " ".join(str(value).split()) if value != "" else "''"
    return text if len(text) <= 60 else f"{text[:59]}…"
