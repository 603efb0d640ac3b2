import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.patience import measure_patience
from pytest_rlregress.stack.lazy import ray

pytestmark = [pytest.mark.isolated(group="shared memory"), pytest.mark.needs("linux")]
SHARED_MEMORY = Path("/dev/shm")
SECONDS = 2.0  # Python's own process removes what others leave 0.1 s after their end; more where an actor ends slowly
HOLD = {"mapped": "os.close(file)", "open": "memory.close()"}


class QueueHolder:
    """What vLLM's executor and its worker have, one such queue each, for what they say to each other."""

    def open(self):
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        self.queue = MessageQueue(n_reader=1, n_local_reader=1, max_chunk_bytes=1 << 20)
        return os.getpid(), self.queue.buffer.shared_memory.name

    def close(self):
        del self.queue


def make(name):
    """Shared memory that no process holds."""
    (SHARED_MEMORY / name).write_bytes(b"\0" * 4096)


@pytest.fixture
def prefix():
    """The beginning of names that are this test's alone; what has such a name is removed after it."""
    yield (prefix := f"rlregress_{os.getpid()}_")
    for path in SHARED_MEMORY.glob(f"{prefix}*"):
        path.unlink()


@pytest.fixture
def killed_actor(ray_cluster):
    """``killed_actor()``: the name of the shared memory that an actor had, which whoever tidies up has had time to do.

    It is removed after the test.
    """
    names = []

    def killed_actor():
        actor = ray.remote(QueueHolder).options(num_cpus=0).remote()
        pid, name = ray.get(actor.open.remote())
        names.append(name)
        assert (SHARED_MEMORY / name).exists()

        def end():
            ray.kill(actor)
            psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [])

        until = measure_patience(end, SECONDS) + time.monotonic()
        while (SHARED_MEMORY / name).exists() and time.monotonic() < until:
            time.sleep(0.02)
        return name

    yield killed_actor
    for name in names:
        with suppress(FileNotFoundError):
            (SHARED_MEMORY / name).unlink()


@pytest.mark.reproduces("shared-memory-left")
@pytest.mark.needs("vllm", "ray")
def test_an_actor_that_ray_ends(killed_actor):
    with act():
        path = SHARED_MEMORY / killed_actor()
    if path.exists():
        silent(f"{path.name} of an actor that is dead is left, {path.stat().st_size >> 20} MiB")


@pytest.mark.guards("shared-memory-left")
@pytest.mark.needs("vllm", "ray")
def test_what_a_dead_actor_left_is_removed(subject, killed_actor):
    name = killed_actor()
    left = [name] if (SHARED_MEMORY / name).exists() else []
    with act():
        assert subject([name]) == left
    assert not (SHARED_MEMORY / name).exists()


@pytest.mark.guards("shared-memory-left")
def test_all_that_nobody_holds_is_named(subject, prefix):
    for number in (2, 1):
        make(f"{prefix}psm_{number}")
    make(f"{prefix}verl_weights_1")
    make(f"{prefix}other")
    with act():
        removed = subject([f"{prefix}psm_", f"{prefix}verl_weights_"])
    assert removed == [f"{prefix}psm_1", f"{prefix}psm_2", f"{prefix}verl_weights_1"]
    assert [path.name for path in SHARED_MEMORY.glob(f"{prefix}*")] == [f"{prefix}other"]


@pytest.mark.guards("shared-memory-left")
@pytest.mark.parametrize("held", HOLD)
def test_what_a_process_holds_stays(subject, prefix, held):
    make(f"{prefix}psm_1")
    code = (
        f"import mmap, os; file = os.open('{SHARED_MEMORY / prefix}psm_1', os.O_RDWR); memory = mmap.mmap(file, 4096)"
    )
    code += f"; {HOLD[held]}; print(flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    with act():
        try:
            assert subject([prefix]) == []
            assert (SHARED_MEMORY / f"{prefix}psm_1").exists(), "removed under a process that has it"
        finally:
            holder.communicate(b"\n")
    assert subject([prefix]) == [f"{prefix}psm_1"]
