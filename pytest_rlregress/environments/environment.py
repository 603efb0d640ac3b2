"""One environment for a running command, which uv moves from lock to lock; and which releases there are.

A mark, written last, says which lock and interpreter it is of. Without it, or with that of another interpreter, the
environment is made again. Commands that run at the same time have one each, under a file lock that uv holds too: a uv
that outlives its command does not write into what comes after.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import count
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.resolver import Resolver
from pytest_rlregress.environments.uv import Installer, Unbuildable
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util import files

_MARK = "rlregress-complete"
_PACKAGES = Path(sysconfig.get_path("purelib", "venv", {"base": ""}).lstrip("/"))


@dataclass(frozen=True)
class Environment:
    """A lock, installed.

    Attributes:
        path: Its folder.
        python: Its interpreter.
        packages: Where its packages are.
        reused: Whether it had this lock already.
    """

    path: Path
    python: Path
    packages: Path
    reused: bool


class Environments:
    """Moves the environment of this command from one lock to the next.

    Args:
        folder: Where it is; made if it is not there. On the filesystem of uv's cache it takes next to no space.
        settings: Variables for uv that say where packages come from.
        offline: Whether only uv's cache and local folders may be used.

    Attributes:
        installer: uv, as the user has configured it.
        resolver: What resolves locks with it.
        releases: What lists releases with it.

    Raises:
        RequestError: uv is not installed.
    """

    def __init__(self, folder: Path, *, settings: Mapping[str, str], offline: bool = False) -> None:
        self._folder = folder.absolute()
        self.installer = Installer(settings, offline)
        self.resolver = Resolver(self.installer)
        self.releases = Releases(self.installer)
        self._held: tuple[Path, int] | None = None  # the environment, and the file descriptor that locks it

    def build(self, lock: Lock) -> Environment:
        """Move the environment to a lock.

        Raises:
            Unbuildable: It cannot be installed: the message is uv's reason.
            RequestError: The disk is full.
        """
        if self._held is None:
            self._held = self._find_free()
        path, held = self._held
        interpreter = " ".join([sys.base_prefix, *sys.version.split()])
        text = f"{interpreter}\n{lock.text}"
        mark, python = path / _MARK, path / "bin/python"
        there = mark.read_text(encoding="utf-8") if mark.exists() and python.exists() else ""
        if there != text:
            mark.unlink(missing_ok=True)
            if there.partition("\n")[0] != interpreter:
                making = ("venv", "--clear", "--no-project", "--python", sys.executable, str(path))
                self.installer.run(*making, keep_open=[held])
            _remove_bytecode(path, {name for name, line in lock.lines.items() if line in there.splitlines()})
            # Not compiled: that takes a minute for the 60 packages around torch and transformers, their imports 15 s
            # more. What is in uv's cache needs no index: saves a second.
            options = ("--allow-empty-requirements", "--link-mode", "hardlink", "--python", str(python))
            sync = partial(
                self.installer.pip, "sync", "lock.txt", *options, files={"lock.txt": lock.text}, keep_open=[held]
            )
            try:
                sync(offline=True)
            except Unbuildable:
                if self.installer.offline:
                    raise
                sync()
            files.write_whole(mark, text, sync=True)
        return Environment(path, python, path / _PACKAGES, there == text)

    def _find_free(self) -> tuple[Path, int]:
        """Find an environment that no other command has, and lock it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in count():
            held = os.open(self._folder / f"{number}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            if files.lock(held):
                return self._folder / str(number), held
            os.close(held)
        raise AssertionError

    def close(self) -> None:
        """Let another command have the environment."""
        if self._held is not None:
            os.close(self._held[1])
            self._held = None


def _remove_bytecode(path: Path, kept: Collection[str]) -> None:
    """Remove the bytecode of all but some packages: uv leaves some, and it counts for a source of its size and time."""
    shutil.rmtree(path / "bytecode", ignore_errors=True)
    for distribution in metadata.distributions(path=[str(path / _PACKAGES)]):
        if canonicalize_name(distribution.name) not in kept:
            sources = (Path(str(distribution.locate_file(file))) for file in distribution.files or ())
            for source in (source for source in sources if source.suffix == ".py"):
                for compiled in source.parent.glob(f"__pycache__/{source.stem}.*.pyc"):
                    compiled.unlink(missing_ok=True)


# -- releases ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Release:
    """A released version that can be installed here.

    Attributes:
        version: In its normal form.
        date: The day its first file was uploaded, as ``2025-01-31``, or None where no index says.
    """

    version: str
    date: str | None = None

    @property
    def public(self) -> str:
        """The version without a build's label."""
        return Version(self.version).public


class Releases:
    """Asks uv which releases there are."""

    def __init__(self, installer: Installer) -> None:
        self._installer = installer
        self._listed: set[str] = set()  # packages that uv has asked for, and has in its cache since then

    def find(self, requirement: str, *, pre: bool = False) -> Release:
        """Find the newest release that meets a requirement and can be installed here.

        Raises:
            Unbuildable: There is none: the message is uv's reason.
        """
        name = canonicalize_name(Requirement(requirement).name)
        found = self._compile(requirement, "--prerelease", "allow" if pre else "disallow", offline=name in self._listed)
        self._listed.add(name)
        if found.date is None:  # another index may say it: this leaves out all files without their day
            with suppress(Unbuildable):
                dated = ("--prerelease", "allow", "--exclude-newer", "9999-01-01T00:00:00Z")
                return replace(found, date=self._compile(f"{name}=={found.version}", *dated, offline=True).date)
        return found

    def _compile(self, requirement: str, *options: str, offline: bool) -> Release:
        written = self._installer.pip(
            *("compile", "requirements.in", "--no-deps", "--only-binary", ":all:", "--python", sys.executable),
            *("--format", "pylock.toml", "--output-file", "pylock.release.toml", *options),
            files={"requirements.in": requirement},
            offline=offline,
        )
        (package,) = tomllib.loads(written)["packages"]
        days = [file["upload-time"].date().isoformat() for file in package.get("wheels", ()) if "upload-time" in file]
        return Release(package["version"], min(days, default=None))

    def find_newest(self, package: str, wanted: str, pre: bool) -> Release:
        """Find the newest release of the wanted versions that can be installed here.

        Raises:
            RequestError: There is none.
        """
        try:
            return self.find(f"{package}{wanted}", pre=pre)
        except Unbuildable as error:
            raise self._explain(package, f"no release is {wanted or 'there'}", error) from None

    def find_exact(self, package: str, what: str, text: str) -> Release:
        """Find the release of a version.

        Raises:
            RequestError: It is not on an index or cannot be installed here; ``what`` says what the version is.
        """
        try:
            wanted = Version(text)
        except InvalidVersion:
            raise RequestError(f"{what} isn't a version: {text!r}") from None
        try:
            found = self.find(f"{package}=={wanted}", pre=True)
        except Unbuildable as error:
            raise self._explain(package, f"{what} {text} cannot be installed here", error) from None
        return Release(str(wanted) if wanted.local else found.public, found.date)

    def _explain(self, package: str, what: str, error: Unbuildable) -> RequestError:
        """Say that a release cannot be had, why, and which is the newest that can."""
        if not error.conflict:
            hint = "Check the network and the settings, or take --no-network, which asks uv's cache"
            return RequestError(f"{error}. {hint}")
        with suppress(Unbuildable):
            return RequestError(f"{what}: {error}. Newest that can be installed here: {self.find(package).version}")
        return RequestError(f"{error}. Check the name, or the settings of uv or pip")

    def list_between(self, package: str, good: str, bad: str, pre: bool) -> list[Release]:
        """List the releases from the good end to the bad end, which may be the older one; both are part of it.

        But for the ends yanked releases are left out, those that cannot be installed here, and pre-releases unless
        ``pre``. A release is listed once, however many builds with a label (``+cpu``) it has.

        Raises:
            RequestError: An end is not on an index or cannot be installed here, or both are the same.
        """
        ends = [self.find_exact(package, f"the {word} end", text) for word, text in (("good", good), ("bad", bad))]
        older, newer = sorted(ends, key=lambda one: Version(one.version))
        if older.version == newer.version:
            raise RequestError(f"the good end and the bad end are the same release, {older.version}")
        found, last = [newer], newer.public
        with suppress(Unbuildable):
            while last != older.public:
                one = self.find(f"{package}>={older.public},<={last},!={last}", pre=pre)
                last = one.public
                if last != older.public:
                    found.append(Release(last, one.date))
        found.append(older)
        return found if ends[0] == newer else found[::-1]

    def list_left_out(self, package: str, known: Sequence[str], pre: bool) -> list[tuple[str, str]]:
        """List the releases between two versions that cannot be installed here or are yanked, each with the reason.

        ``known`` are the two versions, and those between them that were candidates.
        """
        low, *between, high = sorted(map(Version, known))
        conditions = [f">{low.public}", f"<{high.public}", *(f"!={one.public}" for one in between)]
        try:
            self.find(f"{package}{','.join(conditions)}", pre=pre)
        except Unbuildable as error:
            named = {Version(text) for text in re.findall(rf"{re.escape(package)}==([\w.!+]*\w)", error.text)}
            return [
                (str(one), self._explain_left_out(package, one))
                for one in sorted(named - set(between))
                if low < one < high and (pre or not one.is_prerelease)
            ]
        return []

    def _explain_left_out(self, package: str, version: Version) -> str:
        try:
            self.find(f"{package}=={version}", pre=True)
        except Unbuildable as error:
            return str(error)
        return "yanked"
