import functools
import re
import threading
import time

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.cluster.interleaved_collectives_hang.process_groups import (
    NAMES,
    RANKS,
    RECEIVER,
    SENDER,
    full_weight,
    full_weights,
    in_three_processes,
    receive,
    send,
)
from pytest_rlregress.scenarios.patience import FOR_EVER, measure_patience
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.isolated(group="process groups")  # its processes are forks: of one that has no threads
# A group's own timeout is 10 minutes with NCCL, 30 with gloo: until then nothing is said.
SECONDS = 1.0  # more where three processes start and gather slowly
PATIENT = FOR_EVER / 2  # of groups in which nobody waits for ever


def gathered(rank, trainers, weights):
    """All of the names; nobody sends."""
    return [name for name, _ in full_weights(rank, trainers)]


@pytest.mark.reproduces("interleaved-collectives-hang")
@pytest.mark.parametrize("receiver", ["after-its-own-gathering", "refused"])
def test_send_between_two_gatherings(tmp_path, receiver):
    """The receiver shares a trainer's process, or has answered the request with an error, which the sender drops."""

    def sync(rank, trainers, weights):
        pairs = full_weights(rank, trainers)
        if rank == SENDER:
            return send(pairs, weights)
        for _ in pairs:
            pass
        return receive(weights) if rank == RECEIVER and receiver != "refused" else None

    (tmp_path / "first").mkdir()
    (tmp_path / "then").mkdir()
    gathers = functools.partial(in_three_processes, gathered, tmp_path / "first", PATIENT)
    patience = measure_patience(gathers, SECONDS, times=3)
    with act():
        came = in_three_processes(sync, tmp_path / "then", patience)
    waiting = [f"rank {rank} in {one['in']}: {one['error']}" for rank, one in enumerate(came) if "error" in one]
    if waiting:
        assert waiting[0].startswith("rank 0 in broadcast: "), waiting
        assert any(" in all_gather: " in one for one in waiting), waiting
        silent(f"for {patience:.1f} s: {'; '.join(waiting)}")


def sync_by(subject, timeout, parts=("sends", "receives"), lag=0.0):
    """A rank's part under the remedy: what it received or was told, and whether training can go on."""
    import torch.distributed as dist

    def sync(rank, trainers, weights):
        came = {}

        def gathering():
            yield from full_weights(rank, trainers)
            time.sleep(lag * rank)
            came["gathered"] = time.monotonic()

        def sends(pairs):
            came["sent"], came["names"] = time.monotonic(), [name for name, _ in pairs]
            send(pairs, weights)

        def refused(pairs):
            raise ConnectionError("POST /update_weights: 500 Internal Server Error")

        def waits(pairs):
            threading.Event().wait()

        def receives(pairs):
            came["received"] = receive(weights)

        acts = {"sends": sends, "refused": refused, "waits": waits, "receives": receives}
        part = acts.get({SENDER: parts[0], RECEIVER: parts[1]}.get(rank))
        try:
            subject(gathering(), part, trainers, timeout)
        except RuntimeError as error:
            came["told"] = str(error)
        came["threads"] = [one.daemon for one in threading.enumerate() if one is not threading.main_thread()]
        dist.all_reduce(total := torch.tensor([float(rank)]), group=trainers)
        return came | {"total": total.item()}

    return sync


def values(came):
    assert all("value" in one for one in came), came
    found = [one["value"] for one in came]
    assert [one["total"] for one in found] == [3.0] * RANKS, "the ranks are no longer in step"
    assert all(all(one["threads"]) for one in found), "a thread is left behind that no process can end with"
    return found


@pytest.mark.guards("interleaved-collectives-hang")
def test_every_weight_arrives(subject, tmp_path):
    """Not before the slowest rank has gathered all of them."""
    with act():
        sender, _, receiver = found = values(in_three_processes(sync_by(subject, PATIENT, lag=0.1), tmp_path, PATIENT))
    assert not any("told" in one for one in found), found
    assert sender["names"] == NAMES
    assert receiver["received"] == [full_weight(number) for number in range(len(NAMES))]
    assert sender["sent"] > max(one["gathered"] for one in found), "sent while a rank was still gathering"


@pytest.mark.guards("interleaved-collectives-hang")
@pytest.mark.parametrize(
    ("parts", "limit", "words"),
    [
        (("refused", None), PATIENT, "rank 0: ConnectionError: .*500 Internal Server Error"),
        (("waits", None), 0.5, r"rank 0.*\b0\.5 s"),
        ((None, "receives"), 0.5, r"rank 2.*\b0\.5 s"),
    ],
    ids=["refused", "no-answer", "no-sender"],
)
def test_every_rank_is_told(subject, tmp_path, parts, limit, words):
    """A rank that is still waiting when the group's own time is over has other words."""
    with act():
        for one in values(in_three_processes(sync_by(subject, limit, parts), tmp_path, PATIENT)):
            assert re.search(words, one.get("told", "")), one


@pytest.mark.needs("torch")
@pytest.mark.guards("interleaved-collectives-hang")
def test_ranks_outside_of_the_trainers_have_no_part(subject, tmp_path):
    def sync(rank, _, trainers):
        if rank not in (SENDER, RECEIVER):
            return None
        came = []
        subject([("embed", rank)], came.extend if rank == SENDER else None, trainers, PATIENT)
        return came

    with act():
        came = in_three_processes(sync, tmp_path, PATIENT)
    assert [one.get("value", one) for one in came] == [[["embed", SENDER]], None, []]
    assert len(came) == RANKS
