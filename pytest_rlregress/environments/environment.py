"""Environments built by uv, one for each lock, kept until there is no room for them.

In the folder of environments each has the name of its lock's digest and of the Python version. A mark, written last,
says that it is whole; what has no mark is removed and built anew. A file lock beside it, shared by those who use it,
keeps others from removing it; uv holds it too, so that one that outlives us does not write into what comes after.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_rlregress.environments import resolver
from pytest_rlregress.environments.requirements import Wishes
from pytest_rlregress.environments.uv import Installer, NoSpace, NoUv, Unbuildable, UvSettings, full_disk
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util import files

__all__ = ["Environment", "Environments", "NoSpace", "NoUv", "Unbuildable"]

_MARK = "rlregress-complete"
_PACKAGES = Path(sysconfig.get_path("purelib", "venv", {"base": ""}).lstrip("/"))


@dataclass(frozen=True)
class Environment:
    """A lock, installed.

    Attributes:
        path: Its folder.
        python: Its interpreter.
        packages: Where its packages are.
        seconds: What it took to build; about 0 for one that was there.
        reused: Whether it was there.
    """

    path: Path
    python: Path
    packages: Path
    seconds: float
    reused: bool


class Environments:
    """Builds environments for this interpreter's Python version, several at a time where threads ask for them.

    Args:
        folder: Where they are; made if it is not there. On the filesystem of uv's cache they take next to no room.
        settings: Where packages come from.
        offline: Whether only uv's cache and local folders may be used.
        limit: Bytes that all of them may take, which `trim` sees to; None: any.
        say: Told of what takes longer.

    Raises:
        NoUv: uv is not installed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: UvSettings,
        offline: bool = False,
        limit: int | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._folder, self._limit, self._say = folder.absolute(), limit, say
        self._installer = Installer(settings, offline, say)
        self._from_source: set[str] = set()
        self._learnt: set[str] = set()
        self._used: dict[str, int] = {}  # name -> file descriptor that holds its lock
        self._using = threading.Lock()
        self._told_of_copies = False

    def resolve(self, base: Lock, wanted: Mapping[str, str], wishes: Wishes, *, exact: bool = False) -> Lock:
        """A set of packages with some (name -> version) in the wanted versions and as little else moved as can be.

        `resolver.resolve` says how. ``exact``: nothing else is moved or added, whatever the wanted ones ask for.

        Raises:
            Unbuildable: There is no such set: the message is the resolver's reason.
            NoSpace: The disk is full.
        """
        lines = resolver.lines(base, wanted)
        if exact:
            return base.having(lines)
        if base.digest not in self._learnt:
            self._learnt.add(base.digest)
            resolver.learn(base, wishes, self._compile, self._from_source)
        return resolver.resolve(base, lines, wishes, self._compile, self._from_source)

    def _compile(self, question: resolver.ResolveRequest, from_source: Set[str]) -> Mapping[str, str]:
        if question.complete and not self._installer.offline:
            with suppress(Unbuildable):  # saves a second of asking the index what did not change
                answer = self._compile_once(question, from_source, offline=True)
                if set(answer.values()) <= set(question.files["asked.txt"].splitlines()):
                    return answer
        return self._compile_once(question, from_source, offline=False)

    def _compile_once(
        self, question: resolver.ResolveRequest, from_source: Set[str], offline: bool
    ) -> Mapping[str, str]:
        files = ("--overrides", "overridden.txt", "--excludes", "excluded.txt", "--output-file", "out.txt")
        builds = ("--only-binary", ":all:", *(f"--no-binary={name}" for name in sorted(from_source)))
        style = ("--no-header", "--no-annotate", "--python", sys.executable)
        arguments = ("compile", "asked.txt", *files, *builds, *style, *question.options)
        written, _ = self._installer.pip("resolving", *arguments, files=question.files, offline=offline)
        lines = (line.partition(" ;")[0] for line in written.splitlines())
        return {re.split("==| @ ", line)[0]: line for line in lines}

    # -- building --------------------------------------------------------------------------------------------------

    def build(self, lock: Lock) -> Environment:
        """The environment of a lock: the one that is there, else a new one.

        It stays in use, so that nobody removes it, until `trim` is told to keep others, or `close`.

        Raises:
            Unbuildable: It cannot be installed: the message is uv's reason.
            NoSpace: The disk is full; what was half built is gone.
            KeyboardInterrupt: By the user or by `close`; what was half built is gone.
        """
        begun = time.monotonic()
        path = self._folder / f"{lock.digest}-{platform.python_version()}"
        built = False
        with full_disk():
            while not self._use(path):
                held = self._lock(path)
                try:
                    if not (path / _MARK).exists():
                        self._build(path, lock, held)
                        built = True
                finally:
                    os.close(held)
        return Environment(path, path / "bin/python", path / _PACKAGES, time.monotonic() - begun, not built)

    def _build(self, path: Path, lock: Lock, held: int) -> None:
        _remove(path)
        try:
            making = ("venv", "--no-project", "--python", sys.executable, str(path))
            self._installer.run("making an environment", *making, keep_open=[held])
            self._install(path, lock, held)
            self._share_bytecode(path)
            files.write_whole(path / _MARK, lock.text, sync=True)
        except BaseException:
            _remove(path)
            raise

    def _install(self, path: Path, lock: Lock, held: int) -> None:
        target = ("--python", str(path / "bin/python"), "--link-mode", "hardlink")
        # Not compiled: that takes a minute for the 60 packages around torch and transformers, their imports 15 s more.
        arguments = ("install", "--no-deps", "--requirements", "lock.txt", *target)
        doing = f"installing {len(lock.lines)} packages"
        run = partial(self._installer.pip, doing, *arguments, files={"lock.txt": lock.text}, keep_open=[held])
        try:
            _, said = run(offline=True)  # what is in uv's cache needs no index: saves a second
        except Unbuildable:
            if self._installer.offline:
                raise
            _, said = run()
        if "full copy" in said and not self._told_of_copies:
            self._told_of_copies = True
            self._say(f"{self._folder} is not on the filesystem of uv's cache: packages are copied, not linked")

    def _share_bytecode(self, path: Path) -> None:
        """Link the bytecode of the sources that the environment used last has too; its imports need not compile them.

        Bytecode counts for a source of the same size and time, which the same file has:
        https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation
        """
        others = (one.parent for one in self._folder.glob(f"*-{platform.python_version()}/{_MARK}"))
        donor = max(others, key=_last_used, default=path)  # itself has nothing to add
        for place, folders, _ in os.walk(donor / _PACKAGES):
            if "__pycache__" in folders:
                folders.remove("__pycache__")
                with suppress(FileNotFoundError):  # the donor is removed meanwhile
                    _link_bytecode(Path(place), path / _PACKAGES / os.path.relpath(place, donor / _PACKAGES))

    # -- keeping ---------------------------------------------------------------------------------------------------

    def trim(self, keep: Collection[str]) -> None:
        """Remove those used longest ago, and what was half built, until all take no more than the limit.

        Args:
            keep: Digests of the locks whose environments are still needed; others built here are no longer in use.
        """
        with self._using:
            for name in [name for name in self._used if name.partition("-")[0] not in keep]:
                os.close(self._used.pop(name))
        if self._limit is None:
            return
        sizes = {path: size(path) for path in self._folder.glob("[0-9a-f]*") if path.is_dir()}
        for path in sorted(sizes, key=_last_used):
            if sum(sizes.values()) <= self._limit:
                break
            with suppress(BlockingIOError):  # in use
                held = self._lock(path, wait=False)
                try:
                    _remove(path)
                    del sizes[path]
                finally:
                    os.close(held)

    def close(self) -> None:
        """End what is being built, in other threads too; no environment is in use any more."""
        self._installer.stop()
        with self._using:
            while self._used:
                os.close(self._used.popitem()[1])

    def _use(self, path: Path) -> bool:
        """Hold an environment from now on, if it is whole."""
        held = self._lock(path, shared=True)
        with self._using:
            if path.name in self._used:
                os.close(self._used.pop(path.name))
            try:
                os.utime(path / _MARK)
            except FileNotFoundError:
                os.close(held)
                return False
            self._used[path.name] = held
        return True

    def _lock(self, path: Path, *, shared: bool = False, wait: bool = True) -> int:
        """Lock an environment; the file descriptor that does, until it is closed.

        Raises:
            BlockingIOError: Another process has it, and this one is not to wait.
        """
        file = self._folder / ".locks" / path.name
        file.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not files.lock(held, shared=shared):
                if not wait:
                    raise BlockingIOError(f"{path} is in use")
                self._say(f"waiting until {path} is built: by another bisect, or ahead of its turn")
                files.lock(held, shared=shared, wait=True)
        except BaseException:
            os.close(held)
            raise
        return held


def size(path: Path) -> int:
    """Bytes that removing a folder frees: a file that is linked from elsewhere too, such as uv's cache, frees none."""
    total = 0
    for entry in os.scandir(path):
        about = entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(about.st_mode)
        if is_folder:
            total += size(Path(entry.path))
        if is_folder or about.st_nlink == 1:
            total += about.st_blocks * 512
    return total


def _last_used(path: Path) -> float:
    with suppress(FileNotFoundError):
        return (path / _MARK).stat().st_mtime
    return 0.0


def _remove(path: Path) -> None:
    """Remove an environment; its mark first, so that nobody trusts what is left where this is interrupted."""
    with suppress(FileNotFoundError):
        (path / _MARK).unlink(missing_ok=True)
        shutil.rmtree(path)


def _link_bytecode(donor: Path, folder: Path) -> None:
    for compiled in os.scandir(donor / "__pycache__"):
        source = f"{compiled.name.partition('.')[0]}.py"
        if not compiled.name.endswith(f".{sys.implementation.cache_tag}.pyc"):
            continue  # what pytest compiled itself
        with suppress(OSError):  # it is not in the other, has bytecode there, may not be linked: then it is compiled
            if os.path.samefile(donor / source, folder / source):
                (folder / "__pycache__").mkdir(exist_ok=True)
                os.link(compiled.path, folder / "__pycache__" / compiled.name)
