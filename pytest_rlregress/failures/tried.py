"""On which stacks each failure was tried: what the project's own runs gave a verdict on. tried.json is derived data."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

FILE = Path(__file__).with_name("tried.json")

#: The version of each component of a stack.
Releases = Mapping[str, str]


@cache
def _read() -> tuple[list[Releases], dict[str, list[int]]]:
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return found["stacks"], found["failures"]


def find_stacks(failure: str) -> list[Releases]:
    """Return the stacks that a failure was tried on; none for a failure of the user's."""
    stacks, failures = _read()
    return [stacks[number] for number in failures.get(failure, ())]


def has_recorded_verdict(failure: str) -> bool:
    """Return whether a stack beside the lock of CI, which is number 0, gave a verdict on a failure."""
    return any(_read()[1].get(failure, ()))


def list_new_releases(installed: Releases) -> list[str]:
    """List the installed releases that no stack has, as in ``vllm 0.33.0``."""
    stacks, _ = _read()
    known = {(name, _public(version)) for stack in stacks for name, version in stack.items()}
    names = sorted({name for name, _ in known} & set(installed))
    return [f"{name} {installed[name]}" for name in names if (name, _public(installed[name])) not in known]


def was_driven(stacks: Collection[Releases], components: Collection[str], installed: Releases) -> bool:
    """Return whether one of the stacks has exactly the installed releases of these components."""
    wanted = {name: _public(installed[name]) for name in components if name in installed}
    return any(all(_public(one.get(name, "")) == wanted[name] for name in wanted) for one in stacks)


def describe_untried(stacks: Collection[Releases], components: Collection[str], installed: Releases) -> str:
    """Say which installed releases are outside of those tried; "" if all are inside, or nothing is known.

    As in ``not tried with verl 0.4.1 (tried: 0.7.1 to 0.9.1)``.
    """
    outside = []
    for name in components:
        tried = sorted(_versions(one[name] for one in stacks if name in one))
        here = [*_versions([installed.get(name, "")])]
        if tried and here and not tried[0] <= here[0] <= tried[-1]:
            span = f"{tried[0]} to {tried[-1]}" if tried[0] < tried[-1] else f"{tried[0]}"
            outside.append(f"{name} {installed[name]} (tried: {span})")
    return f"not tried with {', '.join(outside)}" if outside else ""


def _versions(texts: Collection[str] | Iterator[str]) -> Iterator[Version]:
    for text in texts:
        try:
            yield Version(_public(text))
        except InvalidVersion:  # of a folder or URL; not installed
            continue


def _public(version: str) -> str:
    """Return a version without the name of its build: 2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]
