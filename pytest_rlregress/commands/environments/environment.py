"""One environment for a running command, which uv moves from lock to lock.

A mark, written last, says which lock and interpreter it is of. Without it, or with that of another interpreter, the
environment is made again. Commands that run at the same time have one each, under a file lock that uv holds too: a uv
that outlives its command does not write into what comes after.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import count
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pytest_rlregress.commands.environments.indexes import Release
from pytest_rlregress.commands.environments.resolver import Resolver
from pytest_rlregress.commands.environments.uv import Installer, Unbuildable
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

    Raises:
        RequestError: uv is not installed.
    """

    def __init__(self, folder: Path, *, settings: Mapping[str, str], offline: bool = False) -> None:
        self._folder = folder.absolute()
        self.installer = Installer(settings, offline)
        self.resolver = Resolver(self.installer)
        self._listed: set[str] = set()
        self._held: tuple[Path, int] | None = None  # the environment, and the file descriptor that locks it

    def find_release(self, requirement: str, *, pre: bool = False) -> Release:
        """Find the newest release that meets a requirement and can be installed here.

        Raises:
            Unbuildable: There is none: the message is uv's reason.
        """
        name = canonicalize_name(Requirement(requirement).name)
        prereleases = ("--prerelease", "allow" if pre else "disallow")
        found = self._find_release(requirement, *prereleases, offline=name in self._listed)
        self._listed.add(name)  # what uv has in its cache from now on
        if found.date is None:  # another index may say it: this leaves out all files without their day
            with suppress(Unbuildable):
                dated = ("--prerelease", "allow", "--exclude-newer", "9999-01-01T00:00:00Z")
                return replace(found, date=self._find_release(f"{name}=={found.version}", *dated, offline=True).date)
        return found

    def _find_release(self, requirement: str, *options: str, offline: bool) -> Release:
        written = self.installer.pip(
            *("compile", "requirements.in", "--no-deps", "--only-binary", ":all:", "--python", sys.executable),
            *("--format", "pylock.toml", "--output-file", "pylock.release.toml", *options),
            files={"requirements.in": requirement},
            offline=offline,
        )
        (package,) = tomllib.loads(written)["packages"]
        days = [file["upload-time"].date().isoformat() for file in package.get("wheels", ()) if "upload-time" in file]
        return Release(package["version"], min(days, default=None))

    # -- building --------------------------------------------------------------------------------------------------

    def build(self, lock: Lock) -> Environment:
        """Move the environment to a lock.

        Raises:
            Unbuildable: It cannot be installed: the message is uv's reason.
            RequestError: The disk is full.
        """
        path, held = self._held = self._held or self._find_free()
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
