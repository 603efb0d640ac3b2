"""Complete sets of packages: what an environment holds, and what differs between two of them."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pytest_rlregress.stack.installed import distributions


class LockError(ValueError):
    """A file that isn't a complete set of packages: the message names file and line, and what is allowed."""


@dataclass(frozen=True)
class Lock:
    """Every package of an environment, by normalised name, with the line that installs exactly it.

    A line is ``name==version``, ``name @ URL`` or ``-e FOLDER``.
    """

    lines: Mapping[str, str]

    @cached_property
    def text(self) -> str:
        """The lines in the order of their names: a requirements file, to be installed without dependencies."""
        return "".join(f"{self.lines[name]}\n" for name in sorted(self.lines))

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that identify this set."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def version(self, name: str) -> str | None:
        """Return the version of a package, the whole line for one that comes from a folder or URL, None for none."""
        line = self.lines.get(canonicalize_name(name))
        return line.partition("==")[2] or line if line else None

    def having(self, changes: Mapping[str, str | None]) -> Lock:
        """Return a lock with these lines, by name, instead; None takes a package out."""
        changed = {canonicalize_name(name): line for name, line in changes.items()}
        kept = {name: line for name, line in self.lines.items() if name not in changed}
        return Lock(kept | {name: line for name, line in changed.items() if line is not None})


@dataclass(frozen=True)
class PackageChange:
    """A package that differs between two locks; None where it is not part of one."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """In words: ``name before -> after``."""
        return f"{self.name} {_short(self.before)} -> {_short(self.after)}"


def differences(before: Lock, after: Lock) -> list[PackageChange]:
    """Return the packages that differ, by name."""
    names = sorted({*before.lines, *after.lines})
    changes = (PackageChange(name, before.lines.get(name), after.lines.get(name)) for name in names)
    return [change for change in changes if change.before != change.after]


def installed() -> Lock:
    """Return the lock of this process' environment."""
    lines: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:  # a half-removed distribution has none; the first on the path is what is imported
            lines.setdefault(canonicalize_name(name), _line(name, distribution))
    return Lock(lines)


def _line(name: str, distribution: metadata.Distribution) -> str:
    """Return the line that installs exactly this distribution: pip notes where it had it from (PEP 610)."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if origin.get("dir_info", {}).get("editable"):
        return f"-e {unquote(urlparse(url).path)}"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f"{canonicalize_name(name)} @ {url}" if url else f"{canonicalize_name(name)}=={distribution.version}"


def read(path: Path) -> Lock:
    """Read a lock from a file: requirements as of ``pip freeze`` or ``uv pip compile``.

    Raises:
        LockError: It cannot be read, or a line does not say exactly which package.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path}: cannot be read: {error}") from None
    return of_lines(numbered_lines(text), str(path), path.parent)


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a requirements file with their numbers; those that a backslash continues are one."""
    begun, parts = 1, []
    for number, line in enumerate(text.splitlines(), 1):
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield begun, " ".join(parts)
            begun, parts = number + 1, []
    if parts:
        yield begun, " ".join(parts)


def of_lines(lines: Iterable[tuple[int, str]], source: str, folder: Path) -> Lock:
    """Read a lock from numbered lines of a file, ``source``, whose relative folders are below ``folder``.

    Raises:
        LockError: A line does not say exactly which package, or none names one.
    """
    found: dict[str, str] = {}
    for number, line in lines:
        stripped = re.sub(r"(^|\s)#.*|\s--hash=\S+", "", line).strip()
        if not stripped or re.match(r"-[if] |--(?!editable)", stripped):
            continue  # where packages come from is the user's configuration, not the lock's
        try:
            name, exact = _exact(stripped, folder)
        except ValueError as error:
            raise LockError(f"{source}: line {number}: {stripped!r}: {error}") from None
        if name is None:
            continue
        if found.get(name, exact) != exact:
            raise LockError(f"{source}: line {number}: {name} is given twice: {found[name]} and {exact}")
        found[name] = exact
    if not found:
        raise LockError(f"{source}: holds no package")
    return Lock(found)


def _exact(line: str, folder: Path) -> tuple[str | None, str]:
    """Return the package that a line installs, and that line normalised; no name where its marker excludes it."""
    editable = re.match(r"(?:-e|--editable)[ =]+(.+)", line)
    if editable:
        where = (folder / editable[1].strip().removeprefix("file://")).resolve()
        return project_name(where), f"-e {where}"
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise ValueError(f"no requirement: {error}") from None
    name = canonicalize_name(requirement.name)
    if requirement.marker is not None and not requirement.marker.evaluate():
        return None, ""
    if requirement.url:
        return name, f"{name} @ {requirement.url}"
    pins = [one for one in requirement.specifier if one.operator in ("==", "===") and not one.version.endswith(".*")]
    if len(pins) != 1 or len(requirement.specifier) != 1:
        raise ValueError("not exactly one version. Allowed: name==version, name @ URL, -e FOLDER")
    return name, f"{name}=={pins[0].version}"


def project_name(folder: Path) -> str:
    """Return the name that a project's own configuration gives it.

    Raises:
        LockError: There is none.
    """
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        project = {}
    if "name" not in project:
        raise LockError(f"{folder} has no pyproject.toml that names the project")
    return canonicalize_name(project["name"])


def _short(line: str | None) -> str:
    return "none" if line is None else line.partition("==")[2] or line
