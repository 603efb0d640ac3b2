"""Three processes with two process groups of gloo: the trainers', and that of a sender and a receiver of weights."""

import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytest_rlregress.scenarios.patience import FOR_EVER
from pytest_rlregress.stack.lazy import torch

SENDER, RECEIVER, RANKS = 0, 2, 3
NAMES = ["embed", "layer", "head"]


def in_three_processes(run: Callable[..., Any], folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Run ``run(rank, trainers, weights)`` in forks of this process, one a rank.

    Args:
        run: Takes the process group of all ranks and that of sender and receiver.
        folder: Empty.
        seconds: The timeout of both groups.

    Returns:
        What came of each rank: its ``value`` as JSON, or the ``error`` and the call of torch.distributed that it is
        ``in``.
    """
    fork = multiprocessing.get_context("fork").Process
    processes = [fork(target=_rank, args=(rank, run, folder, seconds), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(3 * FOR_EVER)
        process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def full_weights(rank: int, trainers: Any) -> Iterator[tuple[str, Any]]:
    """Yield each weight, gathered from its shards when it is its turn, as ``full_tensor()`` gathers those of FSDP."""
    import torch.distributed as dist

    for number, name in enumerate(NAMES):
        shards = [torch.empty(4) for _ in range(RANKS)]
        dist.all_gather(shards, torch.full((4,), 10.0 * number + rank), group=trainers)
        yield name, torch.cat(shards)


def full_weight(number: int) -> list[float]:
    """Return the values that a weight has when it is gathered."""
    return [10.0 * number + rank for rank in range(RANKS) for _ in range(4)]


def send(pairs: Iterable[tuple[str, Any]], weights: Any) -> None:
    """Broadcast each weight as it comes."""
    import torch.distributed as dist

    for _, tensor in pairs:
        dist.broadcast(tensor, SENDER, group=weights)


def receive(weights: Any) -> list[list[float]]:
    """Receive every weight, and return their values."""
    import torch.distributed as dist

    came = [torch.empty(4 * RANKS) for _ in NAMES]
    for tensor in came:
        dist.broadcast(tensor, SENDER, group=weights)
    return [tensor.tolist() for tensor in came]


def _rank(rank: int, run: Callable[..., Any], folder: Path, seconds: float) -> None:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=FOR_EVER))
    try:
        groups = [dist.new_group(ranks, timedelta(seconds=seconds)) for ranks in (range(RANKS), (SENDER, RECEIVER))]
        came = {"value": run(rank, *groups)}
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        calls = [frame.name for frame in frames if frame.filename.endswith("distributed_c10d.py")]
        came = {"in": calls[-1] if calls else None, "error": f"{type(error).__name__}: {error}"}
    (folder / f"{rank}.new").write_text(json.dumps(came))
    (folder / f"{rank}.new").rename(folder / f"{rank}.json")
    end = time.monotonic() + FOR_EVER
    while len(list(folder.glob("*.json"))) < RANKS and time.monotonic() < end:
        time.sleep(0.01)  # or the connection that this one closes is what the others fail of
    os._exit(0)  # gloo's own end waits for operations that never end
