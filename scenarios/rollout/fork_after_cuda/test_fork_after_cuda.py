import multiprocessing
import os
import re
from contextlib import suppress

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.stack.lazy import torch

GPU = pytest.mark.hw(capability=">=8.0")
VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"


@pytest.fixture
def cuda_in_use(monkeypatch):
    """What CUDA tells torch once it was initialised, here and in forked processes; what decides by that is real."""
    process = os.getpid()
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: os.getpid() != process)
    monkeypatch.delenv(VARIABLE, raising=False)


def use_cuda():
    """What a worker does first. Where there is no CUDA it fails too, but not before it has looked for a fork."""
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        if not re.search("not compiled with CUDA|no NVIDIA driver|No CUDA GPUs", str(error)):
            raise


def reporting(pipe, function, arguments):
    try:
        pipe.send(function(*arguments))
    except Exception as error:
        pipe.send(error)


def run_in(context, function, *arguments):
    """Call a function in a process of this start method: what it returns, or the exception it ended with."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=reporting, args=(sender, function, arguments))
    process.start()
    sender.close()
    with suppress(EOFError):  # of a process that died
        outcome = receiver.recv()
    process.join()
    assert process.exitcode == 0, f"the process ended with status {process.exitcode}"
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def run_forked(function, *arguments):
    return run_in(multiprocessing.get_context("fork"), function, *arguments)


def start_worker(choose=None):
    """Start a worker as vLLM would, which uses CUDA; the start method. ``choose`` is asked for one before."""
    from vllm.utils.system_utils import get_mp_context

    if choose:
        os.environ[VARIABLE] = choose()
    context = get_mp_context()
    run_in(context, use_cuda)
    return context.get_start_method()


def start_engine(directory):
    """Start vLLM with its core in a process of its own, as it does by itself; the number of tokens generated."""
    from pytest_rlregress.fixtures import vllm_engine

    vllm_engine.ENVIRONMENT["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    with vllm_engine.start(directory) as engine:
        [completion] = engine.generate([[5, 6, 7]], 4, ignore_eos=True)
        return len(completion.ids)


@pytest.mark.isolated
@pytest.mark.reproduces("fork-after-cuda")
def test_worker_of_a_forked_process(cuda_in_use):
    run_forked(start_worker)


@pytest.mark.isolated
@pytest.mark.reproduces("fork-after-cuda")
def test_worker_with_the_variable_of_the_earlier_engine(cuda_in_use, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V1", "0")
    import vllm.utils.system_utils  # noqa: F401

    with act():
        run_forked(start_worker)


@pytest.mark.isolated
@pytest.mark.guards("fork-after-cuda")
@pytest.mark.needs("vllm")
def test_worker_uses_cuda(cuda_in_use, monkeypatch, subject):
    monkeypatch.setenv(VARIABLE, "fork")  # of an earlier engine: the choice must not be read from it
    assert run_forked(start_worker, subject) == "spawn"


@pytest.mark.isolated
@pytest.mark.guards("fork-after-cuda")
def test_choice(cuda_in_use, subject):
    with act():
        assert run_forked(subject) == "spawn", "CUDA was initialised before this process was forked"
    assert run_forked(run_forked, subject) == "spawn", "CUDA was initialised two processes up"
    assert subject() == "spawn", "CUDA is initialised in this process"


@pytest.mark.isolated
@pytest.mark.guards("fork-after-cuda", fidelity="real")
@pytest.mark.needs("vllm")
def test_choice_without_cuda(subject):
    if torch.cuda._is_in_bad_fork():
        pytest.skip(
            "importing vLLM asks a torch built for CUDA for its devices: without a driver no fork can use CUDA then"
        )
    with act():
        assert subject() == "fork", "nothing here has used CUDA: a script without a __main__ guard must go on working"
    start_worker(subject)


@GPU
@pytest.mark.needs("vllm-engine")
@pytest.mark.isolated(stall=30)  # the engine's error is logged in a process of its own, well before it is raised here
@pytest.mark.reproduces("fork-after-cuda", fidelity="real")
def test_engine_of_a_forked_process(tiny_qwen):
    torch.cuda.init()
    with act():
        run_forked(start_engine, tiny_qwen.directory)


@GPU
@pytest.mark.needs("vllm-engine")
@pytest.mark.isolated
@pytest.mark.guards("fork-after-cuda", fidelity="real")
def test_engine_beside_cuda(tiny_qwen, monkeypatch, subject):
    torch.cuda.init()
    monkeypatch.delenv(VARIABLE, raising=False)
    with act():
        assert run_forked(start_worker, subject) == "spawn"
    monkeypatch.setenv(VARIABLE, subject())
    assert start_engine(tiny_qwen.directory) == 4
