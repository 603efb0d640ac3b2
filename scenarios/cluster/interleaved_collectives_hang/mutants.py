"""Broken remedies of interleaved-collectives-hang, and stacks that differ."""

from __future__ import annotations

import contextlib

from mutants import broken, mutant
from pytest_rlregress.remedies.cluster import gather_then_transfer


@broken(only="test_every_weight_arrives")
def sent_as_gathered(weights, transfer, trainers, timeout):
    for pair in weights:
        if transfer:
            transfer([pair])


@broken(only="-refused")
def failure_dropped(weights, transfer, trainers, timeout):
    def quiet(pairs):
        with contextlib.suppress(Exception):
            transfer(pairs)

    gather_then_transfer(weights, transfer and quiet, trainers, timeout)


@mutant("absent")
def senders_do_not_wait(monkeypatch):
    """A torch whose broadcast returns to the sender before the receivers come."""
    import torch.distributed as dist

    broadcast = dist.broadcast

    def without_waiting(tensor, src, group):
        broadcast(tensor, src, group=group, async_op=dist.get_rank() == src)

    monkeypatch.setattr(dist, "broadcast", without_waiting)


@mutant("changed")
def broadcast_fails(monkeypatch):
    import torch.distributed as dist

    def fails(tensor, src, group):
        raise RuntimeError("broadcast of tensors on the CPU is not supported")

    monkeypatch.setattr(dist, "broadcast", fails)
