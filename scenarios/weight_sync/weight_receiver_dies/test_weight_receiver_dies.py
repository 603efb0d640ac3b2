import asyncio
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.patience import FOR_EVER
from pytest_rlregress.scenarios.weight_sync import transfers

pytestmark = [
    pytest.mark.isolated(group="weight transfers"),
    pytest.mark.needs("verl-trainer", "vllm", "torch", *transfers.INTERFACES),
]
SECONDS = 2.0  # a transfer takes 0.1 s; more where it takes longer
WAITS_IN = ("recv", "send", "_init_buffer", "async_send_weights")


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def raises():
    """As a loader does that does not know a name; the worker goes on after the error."""
    raise KeyError("layers.0.self_attn.qkv_proj.weight")


def hangs():
    threading.Event().wait()


def received(handle, fault):
    """A worker's part; one that could not load the weights says so by its RPC, and lives."""
    try:
        return transfers.receive(handle, fault)
    except Exception:
        hangs()


@pytest.fixture
def handle(monkeypatch, tmp_path, stack):
    """The name of a socket, where verl's sender and receiver can be had; its path may have 107 bytes."""
    transfers.prepare(monkeypatch, tmp_path, stack.versions["vllm"])
    with tempfile.TemporaryDirectory() as folder:
        yield f"ipc://{folder}/weights.sock"


@pytest.fixture
def patience(handle):
    """How many seconds to wait for a transfer on this machine."""
    return transfers.transfer_patience(handle.replace("weights", "first"), SECONDS)


@pytest.mark.reproduces("weight-receiver-dies")
@pytest.mark.parametrize("fault", [dies, raises, None], ids=["dies", "raises", "never-came"])
def test_sender_waits(handle, patience, fault):
    with act(), transfers.forks() as start:
        sender = start(lambda: transfers.send(handle), patience)
        if fault:
            start(lambda: received(handle, fault))
        came = sender.came()
    assert "value" not in came, f"the weights count as sent, and nobody has them: {came}"
    waits_in = [name for name in WAITS_IN if name in came.get("waits", ())]
    if waits_in:
        silent(f"for {patience:.1f} s: the sender waits in {waits_in[-1]} for a receiver that is gone")


def sent_by(subject, handle, seconds):
    try:
        asyncio.run(subject(transfers.sender(handle), transfers.weights(1.0), seconds))
    except RuntimeError as error:
        return {"told": str(error)}
    return {}


@pytest.mark.guards("weight-receiver-dies", fidelity="stand-in")
@pytest.mark.parametrize("share", [0.0, 0.4], ids=["at-once", "slowly"])
def test_weights_arrive(subject, handle, patience, share):
    """Three buckets, each loaded within the limit, which all of them together exceed."""
    with act(), transfers.forks() as start:
        sender = start(lambda: sent_by(subject, handle, patience))
        receiver = start(lambda: transfers.receive(handle, lambda: time.sleep(share * patience)))
        assert receiver.came() == {"value": dict.fromkeys(transfers.NAMES, 1.0)}
        assert "told" not in sender.came()["value"]


@pytest.mark.guards("weight-receiver-dies")
@pytest.mark.parametrize(
    ("fault", "seconds"),
    [(dies, 10 * FOR_EVER), (raises, 0.5), (hangs, 0.5), (None, 0.5)],
    ids=["dies", "raises", "hangs", "never-came"],
)
def test_sender_is_told(subject, handle, fault, seconds):
    """Of a receiver that died at once, however long the limit; the name of the socket says which it is.

    One that raises leaves verl 0.9 waiting, and is seen to close the socket of verl 0.8.
    """
    with act(), transfers.forks() as start:
        sender = start(lambda: sent_by(subject, handle, seconds))
        if fault:
            start(lambda: received(handle, fault))
        end = sender.came()
    came = end.get("value", {})
    assert handle in came.get("told", ""), end
    assert fault in (dies, raises) or f"{seconds:g} s" in came["told"]
    assert not Path(handle.removeprefix("ipc://")).exists(), "the socket is left"
