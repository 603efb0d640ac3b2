"""Finds what a test leaves behind: processes, file descriptors, shared memory, GPU memory (Linux).

A test that passed and left something fails in its teardown, which names it. What was made while a fixture of a wider
scope was set up is that fixture's: it may stay until the fixture is torn down, and must be gone then.
"""

from __future__ import annotations

import gc
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pytest

from pytest_rlregress.hardware import gpu_memory
from pytest_rlregress.util import shared_memory
from pytest_rlregress.util.processes import Process, command, descendants, is_housekeeper, living

#: The name that ``Leaks`` is registered by.
PLUGIN = "rlregress-leaks"
# What first uses leave open, measured: a connection to Ray and a task 29 (11 after ray.shutdown()), an asyncio loop
# with an HTTP client 5, multiprocessing's tracker and fork server 4, torch and a vLLM engine that was shut down none.
DESCRIPTORS = 32
_OF_CONTEXT = ("/dev/nvidia", "anon_inode:[eventfd]")
GRACE_SECONDS = 1.0
# Shared memory that nobody holds may be another program's, which is about to remove it: how long that is waited for.
_NOBODYS_SECONDS = 5.0
_NAMED = 5
_PASSED: pytest.StashKey[bool] = pytest.StashKey()


@dataclass(frozen=True)
class Resources:
    """Everything that could be leaked, as it is at one moment.

    Attributes:
        processes: Living descendants of this process.
        descriptors: Open in this process: number and what it points to.
        shared: This user's shared memory, without semaphores: 32 bytes each, and whoever is killed leaves one behind.
        gpu: Bytes by holder and device: of ``torch``'s allocator, of this ``process``, of anyone on the ``device``.
    """

    processes: frozenset[Process] = frozenset()
    descriptors: frozenset[tuple[int, str]] = frozenset()
    shared: frozenset[shared_memory.Entry] = frozenset()
    gpu: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def uses_cuda(self) -> bool:
        """Whether CUDA is initialised in this process."""
        return any(target == gpu_memory.CUDA for _, target in self.descriptors)

    def minus(self, other: Resources) -> Resources:
        """Subtract what is in ``other``; of memory the difference."""
        return Resources(
            self.processes - other.processes,
            self.descriptors - other.descriptors,
            self.shared - other.shared,
            {key: self.gpu.get(key, 0) - other.gpu.get(key, 0) for key in {*self.gpu, *other.gpu}},
        )

    def plus(self, other: Resources) -> Resources:
        """Join with what is in ``more``; of memory the sum."""
        return Resources(
            self.processes | other.processes,
            self.descriptors | other.descriptors,
            self.shared | other.shared,
            {key: self.gpu.get(key, 0) + other.gpu.get(key, 0) for key in {*self.gpu, *other.gpu}},
        )


@dataclass(frozen=True)
class FixtureResources:
    """What one fixture of a wider scope has: made while it was set up, and later by its processes' descendants."""

    name: str
    seen: Resources


class Leaks:
    """Fails tests that leave something behind; for a pytest whose process runs nothing but tests.

    Args:
        reaper: The process to which this one's orphans go (prctl's PR_SET_CHILD_SUBREAPER), if it has no other
            descendants; without it a daemon that left its parent is not found.
    """

    def __init__(self, reaper: int | None = None) -> None:
        self._root = reaper or os.getpid()
        self._known, self._begun = Resources(), 0
        self._set_up: dict[Any, FixtureResources] = {}
        self._ended: list[FixtureResources] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """See what there is before the test."""
        item.stash[_PASSED] = False
        self._begun = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        self._known = self._look()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Note what a fixture of a wider scope makes."""
        if fixturedef.scope == "function":
            return (yield)
        with self._making(fixturedef):
            return (yield)

    @contextmanager
    def made_by(self, argname: str) -> Iterator[None]:
        """See ``made_by`` of this module."""
        found = [fixturedef for fixturedef in self._set_up if fixturedef.argname == argname]
        with self._making(found[-1]) if found else nullcontext():
            yield

    @contextmanager
    def _making(self, fixturedef: Any) -> Iterator[None]:
        before = self._look().minus(self._known)
        try:
            yield
        finally:
            # Fixtures that were set up by this one have had their things added to what is known.
            made = self._look().minus(self._known).minus(before)
            self._known = self._known.plus(made)
            earlier = self._set_up.get(fixturedef, FixtureResources("", Resources())).seen
            name = f"{fixturedef.scope} fixture {fixturedef.argname!r}"
            self._set_up[fixturedef] = FixtureResources(name, earlier.plus(made))

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        """Note that a fixture was torn down."""
        if fixturedef in self._set_up:
            self._ended.append(self._set_up.pop(fixturedef))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note whether the test passed."""
        report = yield
        if call.when == "call":
            item.stash[_PASSED] = report.passed
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Fail a test that passed, or that was the last one of a fixture, over what was left."""
        staying = set(nextitem.listchain()) if nextitem else set()
        if not staying.issuperset(item.listchain()[:-1]):
            # Fixtures may end now, and with them whatever their processes started since.
            self._set_up = {key: _with_descendants(fixture) for key, fixture in self._set_up.items()}
        try:
            result = yield
            left = self._settled(item.stash[_PASSED])
        finally:
            self._ended.clear()
        if left:
            pytest.fail("\n".join(left), pytrace=False)
        return result

    def _look(self) -> Resources:
        descriptors = _descriptors()
        processes = descendants(self._root, self._family)
        shared = frozenset(entry for entry in shared_memory.files() if not entry.name.startswith("sem."))
        return Resources(processes, descriptors, shared, {**gpu_memory.allocated(), **self._used()})

    def _used(self) -> dict[tuple[str, str], int]:
        """Bytes that the driver counts, for this process and for anyone on a device."""
        used = {}
        for label, handle in self._devices:
            used["device", label] = gpu_memory.used(self._nvml, handle)
            if (held := gpu_memory.holders(self._nvml, handle).get(os.getpid())) is not None:
                used["process", label] = held
        return used

    @cached_property
    def _devices(self) -> list[tuple[str, Any]]:
        self._nvml, devices = gpu_memory.open_nvml(visible_only=True)
        return devices

    @property
    def _family(self) -> frozenset[Process]:
        """The processes of fixtures."""
        return frozenset().union(*(fixture.seen.processes for fixture in [*self._set_up.values(), *self._ended]))

    def _settled(self, passed: bool) -> list[str]:
        """Return a line for the test, and for each fixture that ended, which left something, after time to go."""
        left = self._left(passed)
        if left:
            gc.collect()
            gpu_memory.empty_cache()
        begun = time.monotonic()
        patience = {"GPU memory": gpu_memory.RECLAIM_SECONDS, "shared memory": _NOBODYS_SECONDS}
        while left and time.monotonic() - begun < min(
            patience.get(kind, GRACE_SECONDS) for kinds in left.values() for kind in kinds
        ):
            time.sleep(gpu_memory.LOOK_SECONDS)
            left = self._left(passed)
        return [f"{who}leaked {'; '.join(kinds.values())}" for who, kinds in left.items()]

    def _left(self, passed: bool) -> dict[str, dict[str, str]]:
        """Describe what is left: by the one to blame (empty for the test) and by kind."""
        now = self._look()
        blamed = {}
        for fixture in self._ended:
            alive = frozenset(process for process in fixture.seen.processes if living(process.pid) == process)
            there = Resources(alive, fixture.seen.descriptors & now.descriptors, fixture.seen.shared & now.shared)
            blamed[f"{fixture.name} "] = there
        if passed:
            new = now.minus(self._known)
            # A process from before the test may be new here because its parent, a fixture's, has died. Then one that
            # started in the clock tick in which the test began is given the benefit of the doubt.
            orphans = new.processes and any(living(process.pid) != process for process in self._family)
            ours = frozenset(p for p in new.processes if p.started > self._begun or not orphans)
            blamed[""] = replace(new, processes=ours)
        pids = {os.getpid(), *(process.pid for process in now.processes)}
        left = {who: self._in_words(seen, pids) for who, seen in blamed.items()}
        takers = [
            fixture.name
            for fixture in self._ended
            if max(fixture.seen.gpu.values(), default=0) > gpu_memory.ALLOCATED_BYTES
        ]
        takers += ["the test"] * passed
        if takers and (memory := self._memory_in_words(now)):
            left.setdefault("" if takers == ["the test"] else f"{' or '.join(takers)} ", {})["GPU memory"] = memory
        return {who: kinds for who, kinds in left.items() if kinds}

    def _in_words(self, seen: Resources, ours: Collection[int]) -> dict[str, str]:
        words = {}
        if pids := sorted(process.pid for process in seen.processes if not is_housekeeper(process.pid)):
            fork = {command(os.getpid()): "(a fork of the test's process)"}
            named = [f"{pid} {fork.get(it := command(pid), it)[:120]}{self._on_gpus(pid)}" for pid in pids]
            words["processes"] = f"{len(pids)} process{'es' if len(pids) > 1 else ''}: {_list(named)}"
        # A first CUDA context keeps many of the driver's, for as long as the process lives.
        driver = _OF_CONTEXT if seen.uses_cuda else ()
        opened = [target for _, target in seen.descriptors if not target.startswith(driver)]
        if len(opened) > DESCRIPTORS:
            kinds = Counter(re.sub(r":?\[\d+\]$", "", target) for target in opened)
            named = [f"{count} {kind}" for kind, count in kinds.most_common()]
            words["descriptors"] = f"{len(opened)} file descriptors: {_list(named)}"
        # Another program of this user may have made an entry: it has it mapped then, and this one's processes don't.
        holders = shared_memory.holders(seen.shared) if seen.shared else {}
        blamed = (entry for entry, pids in holders.items() if not pids or pids & set(ours))
        # One that its own program has just removed is nobody's any more.
        if entries := sorted(entry for entry in blamed if entry.path.exists()):
            words["shared memory"] = _list([f"{entry.path} ({gpu_memory.size_of(entry.size)})" for entry in entries])
        return words

    def _memory_in_words(self, now: Resources) -> str:
        """GPU memory of this process that is not known, if it is more than first uses explain."""
        known = self._known
        for fixture in self._ended:
            known = known.minus(fixture.seen)
        loaded = gpu_memory.LOADED_BYTES if known.uses_cuda else gpu_memory.CONTEXT_BYTES
        # In a container the driver may name no process, or by ids from outside, and then only the whole device tells.
        # It counts the processes of fixtures too, which may take more at any time.
        hidden = now.uses_cuda and not self._family and all(holder != "process" for holder, _ in now.gpu)
        words = []
        for (holder, device), grown in sorted(now.minus(known).gpu.items()):
            if holder == "torch" and grown > gpu_memory.ALLOCATED_BYTES:
                words.append(f"torch has {gpu_memory.size_of(grown)} more allocated on {device}")
            elif holder == "process" and grown > loaded:
                words.append(f"pid {os.getpid()} holds {gpu_memory.size_of(grown)} more on {device}")
            elif holder == "device" and hidden and grown > loaded:
                words.append(f"{gpu_memory.size_of(grown)} more are in use on {device} (process ids are hidden here)")
        before = "it was set up" if self._ended else "the test began"
        return f"GPU memory: {', '.join(words)} than when {before}" if words else ""

    def _on_gpus(self, pid: int) -> str:
        held = ((label, gpu_memory.holders(self._nvml, handle).get(pid)) for label, handle in self._devices)
        return "".join(f" ({gpu_memory.size_of(memory)} on {label})" for label, memory in held if memory)


def made_by(config: pytest.Config, argname: str) -> AbstractContextManager[None]:
    """Count what is made, or given back, meanwhile as a fixture's of a wider scope, where a run looks for leaks."""
    leaks: Leaks | None = config.pluginmanager.get_plugin(PLUGIN)
    return leaks.made_by(argname) if leaks else nullcontext()


def _descriptors() -> frozenset[tuple[int, str]]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of this listing
            found.add((int(number), os.readlink(f"/proc/self/fd/{number}")))
    return frozenset(found)


def _with_descendants(fixture: FixtureResources) -> FixtureResources:
    parents = (process.pid for process in fixture.seen.processes if living(process.pid) == process)
    family = fixture.seen.processes.union(*map(descendants, parents))
    return replace(fixture, seen=replace(fixture.seen, processes=family))


def _list(named: list[str]) -> str:
    return ", ".join(named[:_NAMED] + (["…"] if len(named) > _NAMED else []))
