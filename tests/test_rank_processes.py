"""Ranks that fail, die or stop are named, and nothing of a job is left, whatever happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from pytest_rlregress.fixtures import rank_processes
from pytest_rlregress.fixtures.rank_processes import RankError

pytestmark = [pytest.mark.isolated(group="rank processes", timeout=120), pytest.mark.needs("torch")]


def make(rank, *faults):
    """A job that adds up its ranks; each of ``faults`` is what one rank does meanwhile."""
    import torch
    import torch.distributed as dist

    def add(number):
        for wrong, fault in faults:
            if wrong == rank:
                fault()
        value = torch.tensor([float(rank + number)])
        dist.all_reduce(value)
        return value

    def own():
        return os.getpid(), rank

    return {"add": add, "own": own}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise ValueError("no such shard")


def stop():
    time.sleep(600)


def leave():
    os._exit(3)


@pytest.fixture
def job():
    return lambda *arguments, seconds=30.0: rank_processes.start(2, "cpu", make, *arguments, seconds=seconds)


def processes():
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, monkeypatch):
    with rank_processes.start(1, "cpu", make, seconds=30) as ranks:  # the server that ranks are forked from stays
        ranks.call("own")
    before = processes()
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert processes() == before
    assert not [*folder.iterdir()]


def test_ranks_answer_by_rank(job):
    with job() as ranks:
        assert [answer.item() for answer in ranks.call("add", 1)] == [3, 3]
        assert [rank for _, rank in ranks.call("own")] == [0, 1]
        assert len({pid for pid, _ in ranks.call("own")}) == 2


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        (die, "died of SIGKILL"),
        (leave, "died with exit status 3"),
        (fail, "raised ValueError: no such shard"),
    ],
)
@pytest.mark.parametrize("wrong", [0, 1])
def test_rank_that_fails_is_named(job, fault, how, wrong):
    begun = time.monotonic()
    with job((wrong, fault)) as ranks, pytest.raises(RankError, match=f"in add: .*rank {wrong} of 2 {how}"):
        ranks.call("add", 1)
    assert time.monotonic() - begun < 20


def test_rank_that_stops_is_ended_in_time(job):
    begun = time.monotonic()
    with job((1, stop), seconds=4) as ranks, pytest.raises(RankError, match=r"rank 1 of 2 (gave no|had not) answer"):
        ranks.call("add", 1)
    assert time.monotonic() - begun < 20


def test_rank_that_cannot_be_made_is_named(job):
    with job("no fault") as ranks, pytest.raises(RankError, match=r"rank 0 of 2 raised .*Error: .*\n.*Traceback"):
        ranks.call("add", 1)


def test_ranks_end_with_their_process(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
        import test_rank_processes as here
        from pytest_rlregress.fixtures import rank_processes

        if __name__ == "__main__":
            with rank_processes.start(2, "cpu", here.make, (1, here.stop), seconds=60) as ranks:
                print(*(pid for pid, _ in ranks.call("own")), flush=True)
                ranks.call("add", 1)
        """)
    )
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(psutil.pid_exists, pids))
        process.kill()
    end = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [*filter(psutil.pid_exists, pids)]
