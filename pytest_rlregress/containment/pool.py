"""The warm servers and living children of one session, and the GPUs that they hold."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress.containment import (
    END_SECONDS,
    MESSAGE_BYTES,
    REAP_SECONDS,
    ChildGroup,
    Death,
    Limits,
    Order,
    child_config,
    leftovers,
)
from pytest_rlregress.containment.child import INTERRUPT_SECONDS, Child, Receive
from pytest_rlregress.hardware import gpu_memory
from pytest_rlregress.hardware.gpu_lock import GpuLock, acquire
from pytest_rlregress.hardware.nvml import Gpu
from pytest_rlregress.util.processes import go_on, how_it_ended, python_command

_MAIN = "from pytest_rlregress.containment.server import main; main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])"
_SAY_EVERY = 5.0
#: Longer than a server takes to wait for its supervisors and to kill what they leave.
CLOSE_SECONDS = END_SECONDS + REAP_SECONDS + 5.0
#: Variables that only children get. It is in them that coverage is measured. To count the devices that
#: CUDA_VISIBLE_DEVICES=MIG-… shows, torch initialises CUDA.
_OF_CHILDREN = (*child_config.COVERAGE_VARIABLES, "CUDA_VISIBLE_DEVICES")
# Read when torch is imported. OpenMP's idle threads spin, else: where processes share the cores, a step of a small
# model takes ten times as long. https://gcc.gnu.org/onlinedocs/libgomp/OMP_005fWAIT_005fPOLICY.html
_UNLESS_SET = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OMP_WAIT_POLICY": "passive"}
#: Where test files are imported for the first time.
_IMPORTS = ChildGroup("imports", alone=True)


class ContainmentError(RuntimeError):
    """The containment itself failed: a warm server that did not start or went away."""


class WarmServer:
    """A warm server process that has imported ``modules`` and pytest's ``plugins``; forks contained children."""

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str], log: Path, plugins: Sequence[str] = ()
    ) -> None:
        self.modules, self._log = modules, log
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        variables = {name: value for name, value in environment.items() if name not in _OF_CHILDREN}
        with theirs, log.open("ab") as out:
            self._process = subprocess.Popen(
                python_command(_MAIN, str(theirs.fileno()), str(log.parent), *plugins, *modules),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**_UNLESS_SET, **variables},
                start_new_session=True,
            )
        self._begun = time.monotonic()
        self._ready: dict[str, Any] | None = None

    def ready(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Wait for the imports; their seconds and failures, the number of threads, whether CUDA is initialised.

        Raises:
            ContainmentError: The server died while importing; has its log.
        """
        while self._ready is None:
            if not wait([self._control], _SAY_EVERY):
                packages = dict.fromkeys(module.partition(".")[0] for module in self.modules)
                say(f"importing {', '.join(packages)} ({time.monotonic() - self._begun:.0f} s)")
                continue
            data = self._control.recv(MESSAGE_BYTES)
            if not data:
                _, how = how_it_ended(self._process.wait(), raw=False)
                names = ", ".join(self.modules) or "nothing"
                log = self._log.read_text(errors="replace")[-4000:]
                raise ContainmentError(f"the warm server died while importing {names} ({how}):\n{log}")
            self._ready = json.loads(data)["ready"]
        return self._ready

    def safe(self, say: Callable[[str], None]) -> bool:
        """Return whether forking from here is safe: one thread, no CUDA."""
        ready = self.ready(say)
        return ready["threads"] == 1 and not ready["cuda"]

    def fork(self, order: Order, log: Path, echo: bool) -> Child:
        """Start a contained child; its output goes to ``log`` and, if ``echo``, from there to standard output.

        Raises:
            ContainmentError: The server is gone.
        """
        ours, channel = socket.socketpair()
        status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with channel, their_status, log.open("ab") as out:
            try:
                handles = [channel.fileno(), their_status.fileno(), out.fileno()]
                socket.send_fds(self._control, [b"fork"], handles)
            except OSError as error:
                raise ContainmentError(f"the warm server is gone ({error})") from None
        # The supervisor's first word: without it the server ended before it forked.
        if wait([status], _SAY_EVERY) and not status.recv(1, socket.MSG_PEEK):
            status.close()
            ours.close()
            raise ContainmentError("the warm server ended before it forked")
        return Child(Connection(ours.detach()), status, log, order, echo)

    def close(self) -> None:
        """End the server; its children end with their own handles."""
        self._control.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            go_on(self._process.pid)  # a test may have stopped it
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.25)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class _Held:
    """A living child and what goes with it: a server of its own, its folder, how many GPUs it uses."""

    child: Child
    own: WarmServer | None
    folder: Path
    gpus: int


class Pool:
    """Starts servers and children when first asked for, and ends every one of them.

    Args:
        config: The session's config.
        gpus: The GPUs that children may use; those that they see are locked, and so this process' own.
        say: Writes a line on the terminal.
        preload: Modules that every server imports first.
    """

    def __init__(
        self,
        config: pytest.Config,
        gpus: Sequence[Gpu],
        say: Callable[[str], None],
        preload: Sequence[str] = (),
    ) -> None:
        self._config, self._gpus, self._say = config, gpus, say
        self._preload = preload
        self._coverage = child_config.coverage(say)
        #: By the modules that were asked for; None: imports nothing, not even pytest's plugins.
        self._servers: dict[tuple[str, ...] | None, WarmServer] = {}
        self._children: dict[ChildGroup, _Held] = {}
        self._lock: GpuLock | None = None
        self._closed, self._warned = False, False
        self._folder = leftovers.session_folder()
        #: Where xdist's workers write down which tests share a child.
        self.groups_file = self._folder.path / "groups.json"

    def warm(self, modules: tuple[str, ...] | None) -> WarmServer:
        """Return the server that imports ``modules``, and pytest's plugins, since the first call; for None neither."""
        if modules not in self._servers:
            # Loading pytest's plugins is most of what a child without a stack would cost.
            plugins = () if modules is None else child_config.plugin_modules(self._config)
            preload = (*self._preload, *plugins)
            self._servers[modules] = WarmServer(modules or (), os.environ, self._file("server"), preload)
        return self._servers[modules]

    def child(self, group: ChildGroup, files: Iterable[Path], modules: tuple[str, ...], gpus: int = 1) -> Child:
        """Return the living child of ``group``, forked now if there is none.

        It collects ``files`` and is forked from a server that imported ``modules``. Where there are GPUs, its tests
        need so many of them; for 0 none is locked.

        Raises:
            ContainmentError: The warm server died.
            OSError: No space or right for the child's files, or for the lock of a GPU.
            ValueError: The tests need more GPUs at once than there are.
        """
        if group in self._children and self._children[group].gpus < gpus:
            self.stop(group, self._complain)
        if group not in self._children:
            try:
                self._children[group] = self._fork(group, files, modules, gpus)
            except BaseException:
                self._release_unused()
                raise
        return self._children[group].child

    def _fork(self, group: ChildGroup, files: Iterable[Path], modules: tuple[str, ...], gpus: int) -> _Held:
        variables = {**self._visible_gpus(gpus), **dict(group.environment)}
        folder = self._file("c")
        folder.mkdir()
        order = child_config.order(self._config, files, folder, variables, self._coverage)
        order = replace(order, collects=group != _IMPORTS)
        log, echo = folder / "log", self._config.getoption("capture", "no") in ("no", "tee-sys")
        if group.fresh:
            own = WarmServer((), order.environment, self._file("server"), self._preload)
            try:
                return _Held(own.fork(order, log, echo), own, folder, gpus)
            except BaseException:
                own.close()
                raise
        server = self._forkable(modules)
        try:
            child = server.fork(order, log, echo)
        except ContainmentError:  # somebody killed it
            self._servers = {known: one for known, one in self._servers.items() if one is not server}
            server.close()
            child = self._forkable(modules).fork(order, log, echo)
        return _Held(child, None, folder, gpus)

    def try_import(self, file: Path, limits: Limits) -> Death | None:
        """Import a test file in a child that is there for that; how the child died of it, if it did."""
        if _IMPORTS not in self._children:
            # The same arguments decide which conftest files are read first.
            self.child(_IMPORTS, map(Path, self._config.args), (), gpus=0)
        death = self._children[_IMPORTS].child.try_import(file, limits)
        if death is not None:
            self.drop(_IMPORTS)
        return death

    def imported(self) -> None:
        """Drop the child that tried imports: collection is over."""
        if _IMPORTS in self._children:
            self.drop(_IMPORTS)

    def stop(self, group: ChildGroup, receive: Receive) -> Death | None:
        """End a child that tears down its fixtures first; return its death if that failed."""
        death = self._children[group].child.stop(receive)
        self.drop(group)
        return death

    def stop_groups(self, but: Collection[ChildGroup] = ()) -> None:
        """End every other group: a group's engine and cluster are not held while another runs."""
        for group in [group for group in self._children if group not in but]:
            self.stop(group, self._complain)

    def drop(self, group: ChildGroup) -> None:
        """Let go of a child that is dead or is to die now, and of what only it used."""
        held = self._children.pop(group)
        killed = held.child.close()
        if held.own is not None:
            held.own.close()
        shutil.rmtree(held.folder, ignore_errors=True)
        if self._gpus:
            for line in gpu_memory.wait_for_gpu_memory(killed):
                self._say(line)
        self._release_unused()

    def _release_unused(self) -> None:
        """Let others have the GPUs that no living child uses."""
        if self._lock is not None and not any(held.gpus for held in self._children.values()):
            self._lock.release()
            self._lock = None

    def close(self, politely: bool) -> None:
        """End everything and remove the session's temporary folder, and those of processes that were killed.

        Each time: xdist ends its workers after the session's end, as hard as it must.
        """
        if not self._closed:
            self._end(politely)
        self._closed = True
        leftovers.sweep(self._folder.path.parent)

    def _end(self, politely: bool) -> None:
        if politely:
            self.stop_groups()
        elif self._children:
            self._say(f"stopping: fixtures of contained tests have {INTERRUPT_SECONDS:g} s to be torn down")
        for group in list(self._children):
            self._children[group].child.interrupt()
            self.drop(group)
        for server in self._servers.values():
            server.close()
        self._folder.remove()

    def _forkable(self, modules: tuple[str, ...]) -> WarmServer:
        """Return the warm server, or one that has imported nothing where forking from the warm one is not possible."""
        try:
            if self.warm(modules).safe(self._say):
                return self._servers[modules]
        except ContainmentError as error:
            self._say(f"{error}\nThe tests import for themselves.")
            self._servers.pop(modules).close()
            self._servers[modules] = self.warm(None)
        bare = self.warm(None)
        if not bare.safe(self._say) and not self._warned:
            self._warned = True
            threads = bare.ready(self._say)["threads"]
            self._say(f"contained tests may hang: Python has {threads} threads here before it imports anything")
        return bare

    def _visible_gpus(self, count: int) -> dict[str, str]:
        """Return the variables that show a child the GPUs this process has locked, which are ``count`` at least."""
        if not self._gpus or not count:
            return {}
        if self._lock is not None and len(self._lock.gpus) < count:
            self.stop_groups()
        if self._lock is None:
            self._lock = acquire(self._gpus, count, self._say)
        return self._lock.variables

    def _complain(self, kind: str, value: object) -> None:
        if kind == "error":
            self._say(f"while a contained process ended: {value}")

    def _file(self, kind: str) -> Path:
        return self._folder.path / f"{kind}{uuid.uuid4().hex[:6]}"  # short: Unix sockets are below
