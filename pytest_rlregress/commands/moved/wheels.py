"""Read some files of a release's wheel, and keep them by the wheel's name and hash."""

from __future__ import annotations

import ast
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import cached_property
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Protocol

from packaging.requirements import InvalidRequirement, Requirement

from pytest_rlregress.commands.moved.index import Index, NotRead, Wheel, describe_failure
from pytest_rlregress.commands.moved.ranges import RangeFile, open_wheel
from pytest_rlregress.util.files import replacing

_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


@dataclass(frozen=True)
class Selection:
    """Some files of a wheel.

    Attributes:
        name: In the name of what is kept.
        pattern: Matches the whole path of a file; the metadata belong to every selection.
    """

    name: str
    pattern: str

    def selects(self, path: str) -> bool:
        """Return whether a file belongs to it."""
        return bool(re.fullmatch(self.pattern, path) or _METADATA.fullmatch(path))


#: What is read of a trainer: its Python and its configuration.
TRAINER = Selection("trainer", r".*\.(?:py|ya?ml)")
#: What is read of transformers.
ARGUMENTS = Selection("arguments", r"transformers/training_args\.py")
#: What is read of an engine.
PYTHON = Selection("python", r".*\.pyi?")


class _Files(Protocol):
    def list(self) -> list[str]: ...
    def read(self, path: str) -> bytes: ...


@dataclass
class Release:
    """The files of a release that were selected.

    Attributes:
        package: Its normalised name.
        version: In its normal form.
        key: What names its content; "" where nothing does, so that nothing derived from it is kept.
        note: What a reader should know of where it comes from; "" for nothing.
    """

    package: str
    version: str
    key: str
    _files: _Files
    note: str = ""
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of its files."""
        return frozenset(self._files.list())

    def read(self, path: str) -> str:
        """Return a file's text; "" where there is none."""
        return self._files.read(path).decode("utf-8", errors="replace") if path in self.paths else ""

    def parse(self, path: str) -> ast.Module | None:
        """Return a Python file's tree; None where there is no such file, or this Python can't parse it."""
        if path not in self._trees:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # on escapes in others' strings
                    self._trees[path] = ast.parse(self.read(path)) if path in self.paths else None
            except (SyntaxError, ValueError, RecursionError):
                self._trees[path] = None
        return self._trees[path]

    @cached_property
    def classes(self) -> dict[str, list[str]]:
        """The paths of the files that define a class, by its name."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.paths):
            if path.endswith(".py"):
                for name in _CLASS.findall(self.read(path)):
                    found.setdefault(name, []).append(path)
        return found

    def unpack(self, folder: Path, selects: Callable[[str], bool]) -> None:
        """Write some of its files below a folder."""
        made: set[Path] = set()
        for path in filter(selects, self.paths):
            if path.startswith("/") or ".." in path.split("/"):
                continue
            file = folder / path
            if file.parent not in made:
                file.parent.mkdir(parents=True, exist_ok=True)
                made.add(file.parent)
            file.write_bytes(self._files.read(path))

    @cached_property
    def requirements(self) -> list[Requirement]:
        """The requirements that its metadata have, those of extras among them."""
        path = next(filter(_METADATA.fullmatch, self.paths), "")
        lines = HeaderParser().parsestr(self.read(path)).get_all("Requires-Dist") or []
        return [*parse_requirements(lines)]


def parse_requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    """Parse the requirements that metadata have, but for those that aren't valid."""
    for line in lines:
        try:
            yield Requirement(line)
        except InvalidRequirement:
            continue


class _Zip:
    """Files of an archive on the disk, opened when they are read, so that many releases can be held."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)

    def list(self) -> list[str]:
        return self._archive.namelist()

    def read(self, path: str) -> bytes:
        return self._archive.read(path)


class _Installed:
    """Files of an installed distribution."""

    def __init__(self, distribution: metadata.Distribution, selection: Selection) -> None:
        files = ((str(file), file.locate()) for file in distribution.files or ())
        self._paths = {path: Path(str(place)) for path, place in files if selection.selects(path)}

    def list(self) -> list[str]:
        return [*self._paths]

    def read(self, path: str) -> bytes:
        try:
            return self._paths[path].read_bytes()
        except OSError as error:
            raise NotRead(f"{path} of the installed package: {error}") from None


class Releases:
    """Reads releases, each selection of each wheel once.

    Args:
        index: Where wheels are.
        folder: Where what was read is kept.
    """

    def __init__(self, index: Index, folder: Path) -> None:
        self.index, self._folder = index, folder

    def read(self, package: str, version: str, selection: Selection) -> Release:
        """Read some files of a release.

        Raises:
            NotRead: They could not be read; the message says why.
            NoSuchRelease: There is no such release, or it has no wheel.
        """
        wheel = self.index.find_wheel(package, version)
        note = f"{package} {wheel.version} is yanked" if wheel.yanked else ""
        kept = self._folder / f"{wheel.key}.{selection.name}.zip"
        for _ in range(2):
            if not kept.exists():
                self._keep(wheel, selection, kept)
            try:
                return Release(wheel.package, wheel.version, wheel.key, _Zip(kept), note)
            except (zipfile.BadZipFile, OSError):  # cut off
                kept.unlink(missing_ok=True)
        raise NotRead(f"{kept}: what is kept of {wheel.file_name} can't be opened")

    def _keep(self, wheel: Wheel, selection: Selection, kept: Path) -> None:
        """Write the selected files of a wheel to the disk."""
        local = wheel.url.startswith("file:")
        if self.index.offline and not local:
            raise NotRead(f"no network is allowed, and {wheel.file_name} is not kept")
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(kept) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as to:
                for path, content in _extract(wheel, selection):
                    to.writestr(path, content)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise NotRead(f"{wheel.file_name}: {describe_failure(error)}") from None


def read_installed(package: str, selection: Selection) -> Release:
    """Read some files of the package that is installed here.

    Raises:
        NotRead: It isn't installed, or only linked to, as an editable project is.
    """
    found = (one for one in metadata.distributions() if one.name in (package, f"{package}-cpu"))
    distribution = next(found, None)
    if distribution is None:
        raise NotRead(f"{package} isn't installed here")
    files = _Installed(distribution, selection)
    if not any(path.endswith(".py") for path in files.list()):
        raise NotRead(f"{package} {distribution.version} is installed here without its Python, as an editable project")
    record = sha256((distribution.read_text("RECORD") or "").encode()).hexdigest()[:16]
    return Release(package, distribution.version, f"installed {distribution.version} {record}", files)


def _extract(wheel: Wheel, selection: Selection) -> Iterator[tuple[str, bytes]]:
    """Yield the selected files of a wheel with their content, which zipfile checks."""
    with open_wheel(wheel) as source, zipfile.ZipFile(source) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
        begins = [*(entry.header_offset for entry in entries), archive.start_dir]
        chosen = [at for at, entry in enumerate(entries) if selection.selects(entry.filename)]
        if not chosen:
            raise NotRead(f"{wheel.file_name} has none of the files that are read")
        if isinstance(source, RangeFile):
            source.read_ahead([(begins[at], begins[at + 1]) for at in chosen])
        for at in chosen:
            yield entries[at].filename, archive.read(entries[at])
            if isinstance(source, RangeFile):
                source.forget(begins[at + 1])
