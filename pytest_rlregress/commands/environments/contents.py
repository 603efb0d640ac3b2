"""Select the packages that environments hold: what a test needs of this environment, and what each lock must have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.environments import requirements
from pytest_rlregress.stack import COMPONENTS, distributions, locks
from pytest_rlregress.stack.locks import Lock

#: The harness itself: what tries a candidate is the same everywhere.
HARNESS = "pytest-rlregress"


@dataclass(frozen=True)
class Needs:
    """What tests need of this environment.

    Attributes:
        packages: By normalised name; None: all of this environment.
        declared: Whether the tests say so themselves; else it is what they import.
    """

    packages: frozenset[str] | None = None
    declared: bool = False


@dataclass(frozen=True)
class EnvironmentContents:
    """The packages that are held fixed.

    Attributes:
        lock: Its packages.
        requires: What they require of each other.
        left_out: The packages of this environment that are not part of it, because the tests do not need them.
        needs: What the tests need.
    """

    lock: Lock
    requires: requirements.Requirements
    left_out: tuple[str, ...] = ()
    needs: Needs = Needs()


def select_contents(package: str, needs: Needs, editable: Sequence[Path] = ()) -> EnvironmentContents:
    """Select this environment, or the part of it that the tests need, with what that requires.

    Args:
        package: The package under bisect, which belongs to it.
        needs: What the tests need.
        editable: Folders of projects that are installed editable, whatever is installed of them here.
    """
    lock, requires = add_projects(locks.installed(), editable), requirements.read_requirements()
    if needs.packages is None or not _editables(lock) <= requires.keys():  # what a new project needs is not known
        return EnvironmentContents(lock, requires)
    roots = {canonicalize_name(package), *_own_requirements(), *needs.packages, *_editables(lock)}
    kept = requirements.find_dependencies(roots, requires)
    left_out = tuple(sorted(name for name in lock.lines if name not in kept))
    held = lock.having(dict.fromkeys(left_out))
    kept_requires = {name: some for name, some in requires.items() if name in held.lines}
    return EnvironmentContents(held, kept_requires, left_out, needs)


def complete_lock(lock: Lock, editable: Sequence[Path] = ()) -> Lock:
    """Add to a lock that someone else wrote this harness, what it needs and the lock lacks, and these projects."""
    here = locks.installed()
    missing = requirements.find_dependencies({HARNESS}, requirements.read_requirements()) - {
        *lock.lines,
        HARNESS,
    }
    added = {name: here.lines[name] for name in missing if name in here.lines}
    return add_projects(lock.having({**added, HARNESS: here.lines[HARNESS]}), editable)


def add_projects(lock: Lock, editable: Sequence[Path]) -> Lock:
    """Add projects to a lock, installed editable.

    Raises:
        LockError: A folder holds no project.
    """
    return lock.having({locks.project_name(folder): f"-e {folder.resolve()}" for folder in editable})


def list_distributions(components: Iterable[str]) -> set[str]:
    """List the packages that provide some components of the stack."""
    return {name for component in components if component in COMPONENTS for name in COMPONENTS[component].distributions}


def find_providers(files: Collection[str]) -> set[str]:
    """Find the packages of this environment that installed some files, by normalised name.

    What every environment holds, the harness and the pytest plugins with their requirements, is not among them. By
    files and not by modules: several packages have a module ``google`` or ``tests``, as the user's project may.
    """
    found: set[str] = {
        canonicalize_name(distribution.metadata["Name"] or "")
        for distribution in distributions()
        if any(str(distribution.locate_file(file)) in files for file in _list_modules(distribution))
    }
    return found - requirements.find_dependencies(_own_requirements(), requirements.read_requirements())


def _list_modules(distribution: metadata.Distribution) -> list[str]:
    """List the files that may be imported; the package folders where it is not known which are there."""
    if distribution.files is None:  # a distribution's packager took the list away
        tops = (distribution.read_text("top_level.txt") or "").split()
        return [file for top in tops for file in (f"{top}/__init__.py", f"{top}.py")]
    return [str(file) for file in distribution.files if file.suffix in (".py", ".so")]


def _own_requirements() -> set[str]:
    """The harness and the pytest plugins beside it: the user's pytest configuration may name those."""
    plugins = (point.dist for point in metadata.entry_points(group="pytest11"))
    return {HARNESS} | {canonicalize_name(plugin.name) for plugin in plugins if plugin is not None}


def _editables(lock: Lock) -> set[str]:
    """The user's own projects: tests need them without saying so."""
    return {name for name, line in lock.lines.items() if line.startswith("-e ")}
