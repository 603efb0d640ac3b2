"""Build environments with uv, one for each lock, and keep them as long as there is space.

In the folder of environments each has the name of its lock's digest and of the Python version. A mark, written last,
says that it is whole; what has no mark is removed and built anew. A file lock beside it, shared by those who use it,
keeps others from removing it; uv holds it too, so that one that outlives us does not write into what comes after.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_rlregress.environments import resolver
from pytest_rlregress.environments.index_settings import IndexSettings
from pytest_rlregress.environments.requirements import Requirements
from pytest_rlregress.environments.uv import Installer, Unbuildable, report_full_disk
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
        reused: Whether it was there.
    """

    path: Path
    python: Path
    packages: Path
    reused: bool


class Environments:
    """Builds environments for this interpreter's Python version, several at a time where threads ask for them.

    Args:
        folder: Where they are; made if it is not there. On the filesystem of uv's cache they take next to no space.
        settings: Where packages come from.
        offline: Whether only uv's cache and local folders may be used.
        limit: Bytes that all of them may take, which ``trim`` sees to; None: any.
        say: Told of what takes longer.

    Raises:
        NoUv: uv is not installed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: IndexSettings,
        offline: bool = False,
        limit: int | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._folder, self._limit, self._say = folder.absolute(), limit, say
        self._installer = Installer(settings, offline, say)
        self._from_source: set[str] = set()
        self._prepared: set[str] = set()
        self._used: dict[str, int] = {}  # name -> file descriptor that holds its lock
        self._using = threading.Lock()
        self._told_of_copies = False

    def resolve(
        self,
        base: Lock,
        wanted: Mapping[str, str],
        requires: Requirements,
        *,
        exact: bool = False,
        newest: Collection[str] = (),
        conditions: Iterable[str] = (),
    ) -> Lock:
        """Resolve a lock with some packages (name -> version) in wanted versions, and as little else moved as can be.

        ``resolver.resolve`` says how.

        Args:
            base: The lock that is held fixed.
            wanted: Version by name.
            requires: What the packages of the base require of each other.
            exact: Nothing else is moved or added, whatever the wanted ones require.
            newest: Packages that are moved to the newest version that all else allows.
            conditions: Conditions on versions, whatever the base has.

        Raises:
            Unbuildable: There is no such set: the message is the resolver's reason.
            NoSpace: The disk is full.
        """
        lines = resolver.pin_versions(base, wanted)
        if exact:
            return base.having(lines)
        if base.digest not in self._prepared:
            resolver.find_source_builds(base, requires, self._compile, self._from_source)
            self._prepared.add(base.digest)  # not before: another thread goes on with what was found

        return resolver.resolve(
            base, lines, requires, self._compile, self._from_source, newest=newest, conditions=conditions
        )

    def compile(self, lines: Iterable[str], conditions: Iterable[str] = ()) -> Mapping[str, str]:
        """Resolve some requirements alone, to a line by name.

        Raises:
            Unbuildable: They cannot be met together.
        """
        files = {"requirements.in": "\n".join(lines), "constraints.txt": "\n".join(conditions)}
        return self._compile_once(resolver.ResolveRequest(files), self._from_source, offline=False)

    def _compile(self, request: resolver.ResolveRequest, from_source: Set[str]) -> Mapping[str, str]:
        if request.complete and not self._installer.offline:
            with suppress(Unbuildable):  # saves a second of asking the index what did not change
                answer = self._compile_once(request, from_source, offline=True)
                if set(answer.values()) <= set(request.files["requirements.in"].splitlines()):
                    return answer
        return self._compile_once(request, from_source, offline=False)

    def _compile_once(
        self, request: resolver.ResolveRequest, from_source: Set[str], offline: bool
    ) -> Mapping[str, str]:
        named = {"--overrides": "overridden.txt", "--excludes": "excluded.txt", "--constraints": "constraints.txt"}
        files = (
            *(part for pair in named.items() if pair[1] in request.files for part in pair),
            "--output-file",
            "out.txt",
        )
        builds = ("--only-binary", ":all:", *(f"--no-binary={name}" for name in sorted(from_source)))
        style = ("--no-header", "--no-annotate", "--python", sys.executable)
        arguments = ("compile", "requirements.in", *files, *builds, *style, *request.options)
        written, _ = self._installer.pip("resolving", *arguments, files=request.files, offline=offline)
        lines = (line.partition(" ;")[0] for line in written.splitlines())
        return {re.split("==| @ ", line)[0]: line for line in lines}

    # -- building --------------------------------------------------------------------------------------------------

    def build(self, lock: Lock) -> Environment:
        """Build the environment of a lock, or find the one that is there.

        It stays in use, so that nobody removes it, until ``trim`` is told to keep others, or ``close``.

        Raises:
            Unbuildable: It cannot be installed: the message is uv's reason.
            NoSpace: The disk is full; what was half built is gone.
            KeyboardInterrupt: By the user or by ``close``; what was half built is gone.
        """
        path = self._folder / f"{lock.digest}-{_name_interpreter()}"
        built = False
        with report_full_disk():
            while not self._use(path):
                held = self._lock(path)
                try:
                    if not ((path / _MARK).exists() and (path / "bin/python").exists()):
                        self._build(path, lock, held)
                        built = True
                finally:
                    os.close(held)
        return Environment(path, path / "bin/python", path / _PACKAGES, not built)

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
            _, output = run(offline=True)  # what is in uv's cache needs no index: saves a second
        except Unbuildable:
            if self._installer.offline:
                raise
            _, output = run()
        if "full copy" in output and not self._told_of_copies:
            self._told_of_copies = True
            self._say(f"{self._folder} is not on the filesystem of uv's cache: packages are copied, not linked")

    def _share_bytecode(self, path: Path) -> None:
        """Link the bytecode of the sources that the environment used last has too; its imports need not compile them.

        Bytecode counts for a source of the same size and time, which the same file has:
        https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation
        """
        others = (one.parent for one in self._folder.glob(f"*-{_name_interpreter()}/{_MARK}"))
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
        sizes = {path: measure_size(path) for path in self._folder.glob("[0-9a-f]*") if path.is_dir()}
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
                (path / "bin/python").stat()  # else its interpreter was removed
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


def _name_interpreter() -> str:
    """Name this interpreter: two of one version may differ in their ABI (3.13 and 3.13t) or in who built them."""
    installation = hashlib.sha256(sys.base_prefix.encode()).hexdigest()[:8]
    return f"{platform.python_version()}{sys.abiflags}-{installation}"


def measure_size(path: Path) -> int:
    """Count the bytes that removing a folder frees: files that are linked from elsewhere (uv's cache) free none."""
    total = 0
    with suppress(FileNotFoundError):  # another command removes it meanwhile
        for entry in os.scandir(path):
            about = entry.stat(follow_symlinks=False)
            is_folder = stat.S_ISDIR(about.st_mode)
            if is_folder:
                total += measure_size(Path(entry.path))
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
