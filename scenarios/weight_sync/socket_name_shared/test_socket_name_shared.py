import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.patience import FOR_EVER
from pytest_rlregress.scenarios.weight_sync import transfers
from pytest_rlregress.stack import InterfaceMissing

pytestmark = [
    pytest.mark.isolated(group="weight transfers"),
    pytest.mark.needs("verl-trainer", "vllm", "torch", *transfers.INTERFACES),
]
LONGEST = 107  # bytes of the path of a Unix socket
RUNS = {"A": 1.0, "B": 2.0}


def no_rename(handle, run):
    return handle


@pytest.fixture
def handle_of(monkeypatch, tmp_path, stack):
    """``handle_of(rank)``: the name that verl's worker takes, of a job whose number no run here has."""
    transfers.prepare(monkeypatch, tmp_path, stack.versions["vllm"])
    verl, vllm = (f"{name} {stack.versions[name]}" for name in ("verl", "vllm"))
    try:
        from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
    except ImportError as error:
        raise InterfaceMissing(f"needs the worker of {verl}, which does not load beside {vllm}: {error}") from None

    # Ray counts its jobs in each cluster from 1 on: the first is 01000000 in all of them. That name is for real runs.
    monkeypatch.setenv("VERL_RAY_JOB_ID", f"{os.getpid():08x}")
    made = []

    def handle_of(rank=0):
        worker = SimpleNamespace(local_rank=rank, model_runner=SimpleNamespace())
        try:
            made.append(vLLMColocateWorkerExtension._get_zmq_handle(worker))
        except AttributeError:  # by the GPU's own name
            raise InterfaceMissing(f"needs verl's socket of a Ray job, which {verl} doesn't have") from None
        return made[-1]

    yield handle_of
    for handle in made:
        with suppress(FileNotFoundError):
            path_of(handle).unlink()


def path_of(handle):
    return Path(handle.removeprefix("ipc://"))


def bound(handle, since=None):
    """Wait until a sender listens there, other than ``since``; what tells it from others."""
    end = time.monotonic() + FOR_EVER
    while time.monotonic() < end:
        with suppress(FileNotFoundError):
            found = path_of(handle).stat()
            if (found.st_ino, found.st_ctime_ns) != since:
                return found.st_ino, found.st_ctime_ns
        time.sleep(0.01)
    raise AssertionError(f"no sender listens at {handle}")


def two_runs(handle_of, name_of, engines):
    """What the engines of these runs get, when both trainers send before one of the engines asks."""
    with transfers.forks() as start:
        names, last = {run: name_of(handle_of(), f"cluster-{run}") for run in RUNS}, {}
        for run, value in RUNS.items():
            start(lambda run=run, value=value: transfers.send(names[run], value))
            last[names[run]] = bound(names[run], last.get(names[run]))
        return {run: start(lambda run=run: transfers.receive(names[run])).came() for run in engines}


@pytest.mark.reproduces("socket-name-shared")
def test_engine_of_the_first_run(handle_of):
    with act():
        got = two_runs(handle_of, no_rename, "A")["A"].get("value", {})
    assert set(got) == set(transfers.NAMES), "the engine of run A got no weights at all"
    others = [run for run, value in RUNS.items() if run != "A" and value in got.values()]
    if others:
        silent(f"the engine of run A has the weights of run {others[0]}")


@pytest.mark.guards("socket-name-shared")
def test_each_engine_has_the_weights_of_its_run(subject, handle_of):
    came = two_runs(handle_of, subject, RUNS)
    for run, value in RUNS.items():
        assert came[run] == {"value": dict.fromkeys(transfers.NAMES, value)}, f"run {run}"


@pytest.mark.guards("socket-name-shared")
def test_a_name_for_each_run_and_rank(subject, handle_of):
    """However long what tells the runs apart."""
    runs = ["127.0.0.1:6379", "127.0.0.1:6380", f"/scratch/{'x' * 200}/a", f"/scratch/{'x' * 200}/b"]
    with act():
        names = [subject(handle_of(rank), run) for run in runs for rank in range(8)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("ipc://") for name in names)
    assert max(len(os.fsencode(path_of(name))) for name in names) <= LONGEST


@pytest.mark.guards("socket-name-shared")
def test_both_ends_find_each_other(subject, handle_of):
    """Trainer and worker are processes of their own, which share nothing but what the run is called."""
    code = f"import {subject.__module__} as m; print(m.{subject.__name__}({handle_of()!r}, 'run'))"
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "7"}
    with act():
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == subject(handle_of(), "run"), done.stderr


@pytest.mark.guards("socket-name-shared")
@pytest.mark.parametrize("folder", ["/tmp", "/scratch/a run/of://today", ""])
def test_folder_stays_and_the_name_has_16_digits(subject, folder):
    before = f"ipc://{folder}/rl-colocate-zmq-0-rank-0.sock"
    assert re.fullmatch(rf"ipc://{folder}/\D*[0-9a-f]{{16}}\.sock", subject(before, "run"))
    assert subject("tcp://10.0.0.2:5555", "run") == "tcp://10.0.0.2:5555", "a handle that isn't a file stays"
