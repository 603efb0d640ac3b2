"""Complete sets of packages: what an environment holds, and what differs between two of them."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pytest_rlregress.stack.installed import distributions, read_head
from pytest_rlregress.util.text import strip_credentials


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
        name, version = read_head(distribution)
        if name:  # a half-removed distribution has none; the first on the path is what is imported
            lines.setdefault(canonicalize_name(name), _line(name, version, distribution))
    return Lock(lines)


def _line(name: str, version: str, distribution: metadata.Distribution) -> str:
    """Return the line that installs exactly this distribution: pip notes where it had it from (PEP 610)."""
    origin = _read_origin(distribution)
    url = strip_credentials(origin.url)
    if origin.dir_info is not None and origin.dir_info.editable:
        return f"-e {unquote(urlparse(url).path)}"
    if origin.vcs_info is not None:
        url = f"{origin.vcs_info.vcs}+{url}@{origin.vcs_info.commit_id}"
    return f"{canonicalize_name(name)} @ {url}" if url else f"{canonicalize_name(name)}=={version}"


class _Folder(msgspec.Struct):
    editable: bool = False


class _Checkout(msgspec.Struct):
    vcs: str
    commit_id: str


class _Origin(msgspec.Struct):
    """Where an installer had a distribution from, as direct_url.json says."""

    url: str = ""
    dir_info: _Folder | None = None
    vcs_info: _Checkout | None = None


def _read_origin(distribution: metadata.Distribution) -> _Origin:
    """Read a distribution's direct_url.json; from nowhere where it is another thing: it may be any package's."""
    try:
        origin = msgspec.json.decode(distribution.read_text("direct_url.json") or "{}", type=_Origin)
        urlparse(origin.url)
    except (ValueError, OSError, RecursionError):
        return _Origin()
    return origin if re.fullmatch(r"\S*", origin.url + "".join(map(str, _parts(origin.vcs_info)))) else _Origin()


def _parts(checkout: _Checkout | None) -> tuple[str, ...]:
    return () if checkout is None else (checkout.vcs, checkout.commit_id)


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
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield begun, " ".join(parts)
            begun, parts = number + 1, []
    if parts:
        yield begun, " ".join(parts)


# Options of pip that say where packages come from, and in which form.
_OF_INDEXES = re.compile(
    r"(?:-[if]\s|--(?:index-url|extra-index-url|no-index|find-links|trusted-host|no-binary|only-binary|prefer-binary"
    r"|pre|require-hashes|use-feature)(?:[\s=]|$))"
)
_EDITABLE_COMMIT = re.compile(r"(?P<url>\w+\+[^\s#]+@[0-9a-fA-F]{7,64})#(?P<fragment>\S+)")


def of_lines(lines: Iterable[tuple[int, str]], source: str, folder: Path) -> Lock:
    """Read a lock from numbered lines of a file, ``source``, whose relative folders are below ``folder``.

    Raises:
        LockError: A line does not say exactly which package, or none names one.
    """
    found: dict[str, str] = {}
    for number, line in lines:
        stripped = re.sub(r"(^|\s)#.*|\s--hash=\S+", "", line).strip()
        if not stripped or _OF_INDEXES.match(stripped):
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
    if line.startswith("-") and not re.match(r"(?:-e|--editable)[\s=]", line):
        raise ValueError("an option that this doesn't follow. Allowed: name==version, name @ URL, -e FOLDER")
    editable = re.match(r"(?:-e|--editable)[ =]+(.+)", line)
    if editable and re.match(r"\w+\+", editable[1]):
        return _read_editable_commit(editable[1].strip())
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


def _read_editable_commit(text: str) -> tuple[str, str]:
    """Return the package and the line of an editable one from a commit, as ``pip freeze`` writes it."""
    found = _EDITABLE_COMMIT.fullmatch(text)
    parts = parse_qs(found["fragment"]) if found else {}
    if not found or "egg" not in parts:
        raise ValueError("not exactly one commit with its name. Allowed: -e git+URL@COMMIT#egg=NAME")
    name = canonicalize_name(re.sub(r"\[.*", "", parts["egg"][0]))
    folder = f"#subdirectory={parts['subdirectory'][0]}" if "subdirectory" in parts else ""
    return name, f"{name} @ {strip_credentials(found['url'])}{folder}"


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
