"""Leaks of GPU memory: told apart from first uses, given time to come back, blamed on who took it."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
import types
from pathlib import Path

import pynvml
import pytest
from installed import SUPPORT
from nvml_answers import Answers, h100
from nvml_answers import FakeNvml as Cards
from patience import PATIENCE

from pytest_rlregress.hardware import gpu_memory

MIB = 2**20


class FakeNvml(Cards):
    """NVML on two cards, with a table that tests write: bytes by card and process."""

    def __init__(self) -> None:
        super().__init__(h100(0), h100(1))
        self.held: list[dict[int, int]] = [{}, {}]
        self.pids_are_shown = True
        self.broken = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Answers:
        return next(card for card in self.cards if card.uuid == uuid)

    def nvmlDeviceGetMemoryInfo(self, handle: Answers, version: int | None = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(total=80 * 2**30, used=sum(self.held[self.cards.index(handle)].values()))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Answers) -> list[types.SimpleNamespace]:
        if self.broken:
            raise pynvml.NVMLError_GpuIsLost()
        held = self.held[self.cards.index(handle)].items() if self.pids_are_shown else []
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in held]


def test_fake_has_the_functions_of_nvidia_ml_py():
    for name, function in vars(FakeNvml).items():
        if name.startswith("nvml"):
            expected = inspect.signature(getattr(pynvml, name)).parameters.values()
            actual = list(inspect.signature(function).parameters.values())[1:]
            assert [(p.name, p.kind) for p in actual] == [(p.name, p.kind) for p in expected], name


# CUDA is a file here: a process that has it open uses CUDA.
GPU_CONFTEST = f"""
import os, sys, types
import pynvml
from pathlib import Path
sys.path[:0] = [{str(SUPPORT)!r}, {str(Path(__file__).parent)!r}]
from test_leaks_gpu import FakeNvml
from pytest_rlregress.hardware import gpu_memory
from pytest_rlregress.containment import leaks
import pytest

gpu_memory._NVIDIA, gpu_memory.CUDA = Path("/dev/null"), str(Path("cuda").absolute())
gpu_memory.RECLAIM_SECONDS = 0.3
MIB = 2**20

def pytest_configure(config):
    sys.modules["pynvml"] = FakeNvml()
    config.pluginmanager.register(leaks.Leaks(reaper=os.getppid()))

@pytest.fixture(scope="session")
def gpu():
    return sys.modules["pynvml"]

@pytest.fixture(scope="session")
def take(gpu):
    def take(memory, card=0, pid=os.getpid()):
        gpu.held[card][pid] = gpu.held[card].get(pid, 0) + memory * MIB
    return take

FILES = []

@pytest.fixture
def context(take):
    FILES.append(open("cuda", "w"))
    take(520)

@pytest.fixture(scope="session")
def session_context(take):
    FILES.append(open("cuda", "w"))
    take(520)
"""


def test_gpu_memory_that_stays_is_blamed(judged):
    result = judged(
        """
        def test_first_use_creates_a_context(context):
            pass

        def test_loads_kernels(take):
            take(200)

        def test_leaks(take):
            take(512)
            take(1024, card=1)

        def test_next_one_is_not_blamed():
            pass

        def test_another_process_takes_some(gpu, take):
            take(4096, pid=os.getppid())
        """,
        conftest=GPU_CONFTEST,
    )
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.re_match_lines(
        [
            ".*ERROR at teardown of test_leaks",
            r"leaked GPU memory: pid (\d+) holds 512 MiB more on GPU 0, pid \1 holds 1024 MiB more on GPU 1 "
            "than when the test began",
        ]
    )


def test_waits_for_gpu_memory_to_be_freed(judged):
    judged(
        """
        import threading

        def test_gives_back_later(context, take):
            take(2048)
            threading.Timer(1, take, [-2048]).start()
        """,
        conftest=GPU_CONFTEST + "gpu_memory.RECLAIM_SECONDS = 20",
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize("given_back", [8000, 6000])
def test_gpu_memory_of_a_fixture_belongs_to_the_fixture(judged, given_back):
    result = judged(
        f"""
        @pytest.fixture(scope="session")
        def engine(session_context, take):
            take(8000)
            yield
            take(-{given_back})

        def test_first(engine):
            pass

        def test_second(engine, take):
            take(100)
        """,
        conftest=GPU_CONFTEST,
    )
    result.assert_outcomes(passed=2, errors=int(given_back < 8000))
    if given_back < 8000:
        result.stdout.re_match_lines(
            [
                r"session fixture 'engine' or session fixture 'session_context' or the test leaked GPU memory: pid \d+ "
                "holds 2620 MiB more on GPU 0 than when it was set up"
            ]
        )


def test_blames_gpu_memory_if_process_ids_are_hidden(judged):
    result = judged(
        """
        def test_first_use_creates_a_context(gpu, context):
            gpu.pids_are_shown = False

        def test_leaks(take):
            take(512)

        def test_bare():
            pass
        """,
        conftest=GPU_CONFTEST,
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        ["*GPU memory: 512 MiB more are in use on GPU 0 (process ids are hidden here) than when the test began"]
    )


def test_gpu_memory_of_a_leaked_process_is_named(judged):
    result = judged(
        """
        def test_leaks(take):
            process = subprocess.Popen(["sleep", "89"])
            take(512, pid=process.pid)
        """,
        conftest=GPU_CONFTEST,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["leaked 1 process: * sleep 89 (512 MiB on GPU 0)"])


def test_descriptors_of_a_first_context_are_not_a_leak(judged):
    result = judged(
        """
        EVENTS = []

        def test_first_use_opens_many(context):
            EVENTS.extend(os.eventfd(0) for _ in range(60))

        def test_and_no_more():
            EVENTS.extend(os.eventfd(0) for _ in range(60))
        """,
        conftest=GPU_CONFTEST,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.re_match_lines(
        [".*ERROR at teardown of test_and_no_more", "leaked 60 file descriptors: 60 anon_inode.*"]
    )


def test_gpu_that_does_not_answer_blames_nobody(judged):
    judged(
        """
        def test_loses_the_gpu(gpu, take):
            take(5000)
            gpu.broken = True
        """,
        conftest=GPU_CONFTEST,
    ).assert_outcomes(passed=1)


@pytest.fixture
def driver(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(gpu_memory, "_NVIDIA", Path("/dev/null"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    yield fake
    assert fake.open == 0


@pytest.fixture
def looks(monkeypatch):
    """What happens between two looks at the GPUs, one function for each; there are no more of them."""
    between = []

    def sleep(seconds):
        assert between, "looked on"
        between.pop(0)()

    monkeypatch.setattr(gpu_memory, "time", types.SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    return between


def test_waits_for_the_memory_of_dead_processes(driver, looks, monkeypatch):
    driver.held = [{5: 10, 4_000_000: 20}, {4_000_001: 3 * MIB}]
    assert gpu_memory.wait_for_gpu_memory([6], seconds=PATIENCE) == []
    looks[:] = [lambda: None, lambda: None, driver.held[0].clear]
    assert gpu_memory.wait_for_gpu_memory([4_000_000], seconds=PATIENCE) == []
    assert not looks, "gave up before the memory was free"
    monkeypatch.undo()


def test_gives_up_on_memory_that_is_never_freed(driver):
    driver.held = [{5: 10, 4_000_000: 20}, {4_000_001: 3 * MIB}]
    left = gpu_memory.wait_for_gpu_memory([4_000_000, 4_000_001, 6], seconds=0.2)
    assert left == ["pid 4000000 holds 0 KiB on GPU 0", "pid 4000001 holds 3 MiB on GPU 1"]


def test_without_listed_processes_waits_until_memory_is_stable(driver, looks):
    driver.pids_are_shown = False
    driver.held = [{4_000_000: 3 * MIB}, {}]
    looks += [functools.partial(driver.held[0].update, {4_000_000: (3 - step) * MIB}) for step in (1, 2, 3)]
    looks += [lambda: None] * (gpu_memory._STILL_LOOKS - 1)
    assert gpu_memory.wait_for_gpu_memory([4_000_000], seconds=PATIENCE) == []
    assert not looks, "gave up while memory was still being freed"


def test_does_not_wait_without_a_driver(monkeypatch):
    monkeypatch.setattr(gpu_memory, "_NVIDIA", Path("/nonexistent"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_memory.wait_for_gpu_memory([os.getpid()], seconds=30) == []


def test_without_nvidia_ml_py_opens_no_driver(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_memory, "_NVIDIA", tmp_path)  # a driver is there
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_memory.open_nvml(visible_only=True) == (None, [])
