"""Leases: processes that really contend for GPUs; the GPUs themselves are only names here."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from patience import PATIENCE

from pytest_rlregress.hardware import gpu_lock
from pytest_rlregress.hardware.nvml import Gpu

GPUS = [Gpu(n, "NVIDIA H100 80GB HBM3", (9, 0), None, f"GPU-{n}aaaaaaa-1111-2222-3333-444444444444") for n in range(4)]
SLICE = Gpu(0, "NVIDIA A100-SXM4-80GB MIG 3g.40gb", (8, 0), None, "MIG-GPU-1c6d4ef1/1/0", mig=True)

# Script arguments: the folder, how many GPUs there are, how many to take.
HEAD = """
import os, sys, time
from pathlib import Path
from pytest_rlregress.hardware import gpu_lock
from pytest_rlregress.hardware.nvml import Gpu
folder, count = Path(sys.argv[1]), int(sys.argv[3])
gpus = [Gpu(n, "", (9, 0), None, f"GPU-{n}") for n in range(int(sys.argv[2]))]
gpu_lock._MACHINE = folder
def take():
    return gpu_lock.acquire(gpus, count, lambda line: print(line, flush=True))
"""
HOLD = HEAD + "mine = take(); print(*(gpu.uuid for gpu in mine.gpus), flush=True); time.sleep(60)"
# Marks every GPU that it holds with a file of its own, which nobody else's may be in the way of; until all had 3 turns.
CONTEND = (
    HEAD
    + """
turns, counts = 0, [folder / f"turns-{one}" for one in range(int(sys.argv[5]))]
while any(not file.exists() or file.stat().st_size < 3 for file in counts):
    mine = take()
    marks = [os.open(folder / f"mark-{gpu.uuid}", os.O_CREAT | os.O_EXCL) for gpu in mine.gpus]
    assert len(set(mine.gpus)) == count
    time.sleep(0.002)
    for gpu, mark in zip(mine.gpus, marks):
        os.close(mark)
        os.unlink(folder / f"mark-{gpu.uuid}")
    mine.release()
    turns += 1
    with counts[int(sys.argv[4])].open("a") as file:
        file.write("x")
print(turns)
"""
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_lock, "_MACHINE", tmp_path)
    return tmp_path


@pytest.fixture
def start(folder):
    """Start a script; its standard output can be read."""
    started = []

    def start(script, *args):
        command = [sys.executable, "-c", script, str(folder), *map(str, args)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def acquire(gpus, count, say=pytest.fail):
    return gpu_lock.acquire(gpus, count, say)


def locked(folder):
    return sorted(path.name for path in folder.glob("rlregress-*/*") if gpu_lock._holder(path))


def test_locks_the_first_free_gpus_and_releases_them(folder):
    one = acquire(GPUS, 1)
    two = acquire(GPUS, 2)
    assert one.gpus + two.gpus == tuple(GPUS[:3])
    one.release()
    again = acquire(GPUS, 2)
    assert again.gpus == (GPUS[0], GPUS[3])
    again.release()
    two.release()
    assert locked(folder) == []


def test_slice_is_named_as_cuda_expects(folder):
    mine = acquire([SLICE], 1)
    assert mine.variables["CUDA_VISIBLE_DEVICES"] == SLICE.uuid
    assert locked(folder) == ["MIG-GPU-1c6d4ef1-1-0"]
    mine.release()


@pytest.mark.parametrize(("gpus", "count"), [(GPUS[:2], 3), ([], 1), (GPUS, 0)])
def test_rejects_more_gpus_than_there_are(gpus, count):
    with pytest.raises(ValueError, match=f"asks for {count} GPUs at once, and this run may use {len(gpus)}"):
        acquire(gpus, count)


def test_rejects_a_lock_folder_that_others_can_change(folder):
    theirs = folder / f"rlregress-{os.getuid()}"
    theirs.mkdir(mode=0o700)
    acquire(GPUS, 1).release()
    theirs.chmod(0o777)
    with pytest.raises(PermissionError, match="mode 0777: remove it"):
        acquire(GPUS, 1)
    theirs.rename(folder / "elsewhere")
    theirs.symlink_to(folder / "elsewhere")
    (folder / "elsewhere").chmod(0o700)
    with pytest.raises(PermissionError, match="must be a folder of that user"):
        acquire(GPUS, 1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_rejects_a_lock_folder_of_another_user(folder):
    theirs = folder / f"rlregress-{os.getuid()}"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, os.getuid() + 1, -1)
    with pytest.raises(PermissionError, match=f"belongs to user id {os.getuid() + 1}"):
        acquire(GPUS, 1)


def test_waiting_names_the_holder_until_it_is_killed(start, monkeypatch):
    monkeypatch.setattr(gpu_lock, "_SAY_SECONDS", 0.3)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # a worker is named as one
    gpus = [Gpu(n, "", (9, 0), None, f"GPU-{n}") for n in range(2)]
    holder = start(HOLD, 2, 2)
    assert holder.stdout.readline().split() == ["GPU-0", "GPU-1"]
    said = []

    def say(line):
        said.append(line)
        if len(said) == 2:
            holder.kill()
            holder.wait()

    mine = acquire(gpus, 1, say)
    mine.release()
    assert len(said) >= 2
    assert f"waiting for 1 of 2 GPUs (0 s): GPU 0 is held by process {holder.pid} (-c " in said[0]
    assert "GPU 1 is held by" in said[0]


def test_program_does_not_inherit_the_lock(folder):
    mine = acquire(GPUS, 1)
    process = subprocess.Popen(["sleep", "60"], close_fds=False)
    for lock in mine._locks:
        os.close(lock)  # as the end of this process does
    assert locked(folder) == []
    process.kill()
    process.wait()


def test_release_in_a_forked_holder_counts(folder):
    mine = acquire(GPUS, 1)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    mine.release()
    assert locked(folder) == []
    os.close(write)
    os.waitpid(pid, 0)
    os.close(read)


def wait_in_queue(folder, process):
    while not any(name.startswith("queue-") for name in locked(folder)):
        assert process.poll() is None
        time.sleep(0.01)


def test_process_that_dies_in_the_queue_is_skipped(start, folder):
    gpus = [Gpu(0, "", (9, 0), None, "GPU-0")]
    mine = acquire(gpus, 1)
    waiting = start(HOLD, 1, 1)
    wait_in_queue(folder, waiting)
    waiting.kill()
    waiting.wait()
    mine.release()
    acquire(gpus, 1).release()
    assert locked(folder) == []


def test_request_for_two_gpus_is_not_overtaken_by_a_request_for_one(start, folder):
    gpus = [Gpu(n, "", (9, 0), None, f"GPU-{n}") for n in range(2)]
    mine = acquire(gpus, 1)
    both = start(HOLD, 2, 2)
    wait_in_queue(folder, both)
    one = start(HOLD.replace("_MACHINE = folder", "_MACHINE, gpu_lock._SAY_SECONDS = folder, 0.2"), 2, 1)
    assert one.stdout.readline().startswith("waiting for 1 of 2 GPUs")
    assert locked(folder) == ["GPU-0", "queue-GPU-0", "queue-GPU-1"], "the free one was taken"
    mine.release()
    assert both.stdout.readline().split() == ["GPU-0", "GPU-1"]
    assert one.poll() is None


@pytest.mark.parametrize(("gpus", "counts"), [(3, [2, 2, 1]), (2, [2, 1, 1])], ids=["two-of-three", "two-against-ones"])
def test_no_gpu_is_held_twice_and_every_request_gets_its_turn(start, gpus, counts):
    contenders = [start(CONTEND, gpus, count, one, len(counts)) for one, count in enumerate(counts)]
    turns = []
    for contender in contenders:
        output, _ = contender.communicate(timeout=PATIENCE)
        assert contender.returncode == 0, "the GPU was marked by somebody else, or nothing came"
        turns.append(int(output.splitlines()[-1]))
    assert min(turns) >= 3, turns


def test_does_not_wait_for_other_gpus(start, folder, monkeypatch):
    monkeypatch.setattr(gpu_lock, "_SAY_SECONDS", 0.0)  # a wait is said at once, and fails the test
    mine = acquire([Gpu(0, "", (9, 0), None, "GPU-0")], 1)
    wait_in_queue(folder, start(HOLD, 1, 1))
    acquire([Gpu(1, "", (9, 0), None, "GPU-1")], 1).release()
    mine.release()
