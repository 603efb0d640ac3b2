"""Which releases of a package a run has: what is installed, or what the trainer's extra requires."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


def is_installed(package: str) -> bool:
    """Return whether a distribution of this name, or of its build for a CPU, is installed here."""
    return any(_version(name) for name in (package, f"{package}-cpu"))


def specifier_contains(specifier: str, version: str) -> bool | None:
    """Return whether a version is one of those; None of what isn't a version."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


@cache
def requires_only(trainer: str, package: str, specifier: str) -> bool | None:
    """Return whether the installed trainer's extra takes no other releases than those; None if it doesn't say.

    Only a pin and a lower bound say something: the releases between are not known here.
    """
    for line in _requirements(trainer):
        try:
            asked = Requirement(line)
        except InvalidRequirement:
            continue
        least = [one.version for one in asked.specifier if one.operator in ("==", ">=", "~=")]
        if asked.name == package and least and specifier.startswith(">="):
            return max(map(Version, least)) >= Version(specifier.removeprefix(">=")) or None
    return None


def _requirements(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
