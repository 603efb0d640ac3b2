import contextlib

from mutants import broken, replaces
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


@replaces("absent", "torch.distributed.broadcast")
def senders_do_not_wait(original, tensor, src, group):
    """A torch whose broadcast returns to the sender before the receivers come."""
    import torch.distributed as dist

    original(tensor, src, group=group, async_op=dist.get_rank() == src)


@replaces("changed", "torch.distributed.broadcast")
def broadcast_fails(tensor, src, group):
    raise RuntimeError("broadcast of tensors on the CPU is not supported")
