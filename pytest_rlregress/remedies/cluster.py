"""Remedies for clusters: who waits for whom, what is reserved, which cards an actor sees."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from ray.util.placement_group import PlacementGroup
    from torch.distributed import ProcessGroup

__all__ = ["gather_then_transfer", "reserve_resources", "without_gpus"]


def gather_then_transfer(
    weights: Iterable[tuple[str, torch.Tensor]],
    transfer: Callable[[list[tuple[str, torch.Tensor]]], None] | None,
    trainers: ProcessGroup,
    timeout: float,
) -> None:
    """Gather all weights on every trainer rank, and only then send them: no rank waits in two groups at a time.

    Called by every rank of ``trainers``.

    Args:
        weights: Names and tensors, whose making is a collective of ``trainers``: ``full_tensor()`` of each parameter.
        transfer: What this rank does with all of them once every rank has gathered: sends them, or receives them for
            an engine beside it, on another group. None where it has no part. Runs in a thread.
        trainers: Process group.
        timeout: Seconds that a transfer may take.

    Raises:
        RuntimeError: On every rank alike: which ranks' transfers failed, with their words, or did not end in time.
            ``trainers`` is still in step; the group of the transfer is not, its thread is left behind.
    """
    import torch
    import torch.distributed as dist

    gathered = []
    for pair in weights:
        if transfer is not None:  # else nothing is kept: the whole model is only where it is needed
            gathered.append(pair)
    dist.barrier(group=trainers)
    words = None if transfer is None else _words_of(lambda: transfer(gathered), timeout, torch)
    told: list[str | None] = [None] * trainers.size()
    dist.all_gather_object(told, words, group=trainers)
    failed = [f"rank {rank}: {one}" for rank, one in enumerate(told) if one]
    if failed:
        raise RuntimeError(f"the weights were not transferred: {'; '.join(failed)}")


def _words_of(act: Callable[[], None], timeout: float, torch: Any) -> str | None:
    """Run ``act``: return its failure's words, or that it takes too long; None when it is done."""
    words: list[str | None] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> None:
        try:
            if device is not None:  # a new thread begins with the first one
                torch.cuda.set_device(device)
            act()
            words.append(None)
        except Exception as error:
            words.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout)
    return words[0] if words else f"did not end in {timeout:g} s"


def reserve_resources(bundles: Sequence[Mapping[str, float]], strategy: str, timeout: float) -> PlacementGroup:
    """Make a Ray placement group and wait until it is there, or say what is short: ``ready()`` alone waits for ever.

    Args:
        bundles: Resources that must be on one node each: ``[{"CPU": 1, "GPU": 1}] * 8``.
        strategy: As ``placement_group`` takes it: ``PACK``, ``STRICT_PACK``, ``SPREAD``, ``STRICT_SPREAD``.
        timeout: Seconds to wait for what the cluster has, but not free; rounded up to whole ones, which Ray counts.

    Returns:
        The group, created.

    Raises:
        RuntimeError: At once, of what all nodes together have too little of; after ``timeout``, with what is free.
            Nothing stays reserved or asked for.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    wanted: Counter[str] = Counter()
    for bundle in bundles:
        wanted.update(bundle)
    total = ray.cluster_resources()
    short = {name: total.get(name, 0.0) for name, amount in wanted.items() if total.get(name, 0.0) < amount}
    if short:
        asked = ", ".join(f"{wanted[name]:g} {name} of {there:g}" for name, there in short.items())
        raise RuntimeError(f"the placement group asks for more than the cluster has: {asked}")
    group = placement_group(list(bundles), strategy)
    seconds = math.ceil(timeout)
    if not group.wait(seconds):
        remove_placement_group(group)
        free = ray.available_resources()
        asked = ", ".join(f"{amount:g} {name}, free {free.get(name, 0.0):g}" for name, amount in wanted.items())
        raise RuntimeError(
            f"the placement group of {len(bundles)} bundles, {strategy}, did not come in {seconds} s: it asks for "
            f"{asked}; each bundle must find room on one node"
        )
    return group


def without_gpus(options: Mapping[str, Any]) -> dict[str, Any]:
    """Let a Ray actor that asks for no GPU see none: up to which release Ray hides them itself differs.

    Args:
        options: As ``Actor.options`` and ``ray.remote`` take them; left as they are.

    Returns:
        The options. Without ``num_gpus``, or with 0, ``CUDA_VISIBLE_DEVICES`` is empty in the actor's environment,
        unless they set it; all else stays.
    """
    environment = dict(options.get("runtime_env") or {})
    variables = dict(environment.get("env_vars") or {})
    if options.get("num_gpus") or "CUDA_VISIBLE_DEVICES" in variables:
        return dict(options)
    return {**options, "runtime_env": {**environment, "env_vars": {**variables, "CUDA_VISIBLE_DEVICES": ""}}}
