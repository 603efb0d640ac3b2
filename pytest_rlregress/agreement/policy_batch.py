"""A policy's batch, and the ways to recast it that leave each trained token what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PolicyBatch:
    """A batch, or a micro batch of it: all that a policy's loss and its advantages are computed from.

    Attributes:
        log_probs: ``[rows, tokens]``, floating, in nats: of the sampled tokens, by the policy that is trained.
        old_log_probs: The same by the policy that sampled.
        ref_log_probs: The same by the reference policy.
        advantages: ``[rows, tokens]``, floating.
        rewards: ``[rows, tokens]``, floating: each sequence's on its last trained token.
        mask: ``[rows, tokens]``, int64: 1 for a token that is trained on, else 0.
        sequences: ``[rows, tokens]``, int64: which sequence of the whole batch a token is of; -1 for padding.
        groups: For each row the prompt that it answers; of a packed row, its last sequence's.
        batch_tokens: Trained tokens in the whole batch.
        batch_sequences: Sequences in the whole batch.
        parts: In how many micro batches the whole batch is split.
    """

    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    ref_log_probs: torch.Tensor
    advantages: torch.Tensor
    rewards: torch.Tensor
    mask: torch.Tensor
    sequences: torch.Tensor
    groups: Sequence[str]
    batch_tokens: int
    batch_sequences: int
    parts: int = 1

    def with_floats(self, change: Callable[[torch.Tensor], torch.Tensor]) -> PolicyBatch:
        """Return the batch with ``change`` applied to each floating tensor."""
        return replace(self, **{name: change(getattr(self, name)) for name in FLOATS})


FLOATS = ("log_probs", "old_log_probs", "ref_log_probs", "advantages", "rewards")


def drawn_batch(lengths: Sequence[int] = (8, 3, 6, 2), seed: int = 0) -> PolicyBatch:
    """Draw a batch of sequences of these lengths, two to a group, padded to the longest plus one.

    The third token of each sequence of five and more is not trained on, as a tool's output. The old log-probabilities
    are 0.2 nats away, mean: some ratios are outside of PPO's clip range.
    """
    import torch

    draw = torch.Generator().manual_seed(seed)
    shape = len(lengths), max(lengths) + 1
    place = torch.arange(shape[1]).expand(shape)
    inside = place < torch.tensor(lengths)[:, None]
    mask = (inside & ~((place == 2) & (torch.tensor(lengths)[:, None] >= 5))).long()
    last = torch.nn.functional.one_hot(torch.tensor(lengths) - 1, shape[1])
    log_probs = -0.2 - 3 * torch.rand(shape, generator=draw)
    return PolicyBatch(
        log_probs=log_probs,
        old_log_probs=log_probs + 0.25 * torch.randn(shape, generator=draw),
        ref_log_probs=log_probs + 0.25 * torch.randn(shape, generator=draw),
        advantages=(0.5 + torch.rand(shape, generator=draw)) * torch.randn(shape, generator=draw).sign() * mask,
        rewards=torch.rand(shape[0], 1, generator=draw) * last,
        mask=mask,
        sequences=torch.where(inside, torch.arange(shape[0])[:, None], -1),
        groups=[f"prompt {row // 2}" for row in range(shape[0])],
        batch_tokens=int(mask.sum()),
        batch_sequences=shape[0],
    )


# A recast batch is given by the origin of each part: the places of its tokens in the whole batch, -1 for padding.


def places(batch: PolicyBatch) -> torch.Tensor:
    """Number the tokens of a batch: the origin of the batch as it is."""
    import torch

    return torch.arange(batch.mask.numel()).reshape(batch.mask.shape)


def taken(batch: PolicyBatch, origin: torch.Tensor) -> PolicyBatch:
    """Return the tokens of ``origin`` in its shape; zeros, and sequence -1, where that is -1."""
    import torch

    tensors: dict[str, Any] = {}
    for one in fields(batch):
        value = getattr(batch, one.name)
        if isinstance(value, torch.Tensor):
            padding = -1 if one.name == "sequences" else 0
            tensors[one.name] = torch.where(origin >= 0, value.flatten()[origin.clamp(min=0)], padding)
    rows = [int(row.max()) // batch.mask.shape[1] for row in origin]
    return replace(batch, **tensors, groups=[batch.groups[row] for row in rows])


def under_mask(batch: PolicyBatch, value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what puts ``value`` where the mask of the batch is 0."""
    return lambda numbers: numbers.masked_fill(batch.mask == 0, value)


def _padded(origin: torch.Tensor, batch: PolicyBatch) -> Sequence[torch.Tensor]:
    import torch

    return [torch.nn.functional.pad(origin, (0, 5), value=-1)]


#: What is said of each change, how it is done, and what is put where the mask is 0.
CHANGES: Mapping[str, tuple[str, Callable[[Any, PolicyBatch], Sequence[torch.Tensor]], Sequence[float]]] = {
    "micro-batches": ("split in 2 micro batches", lambda origin, batch: origin.chunk(2), ()),
    "dynamic-batches": (
        "split in 2 micro batches of unequally many rows",
        lambda origin, batch: origin.split([1, len(origin) - 1]),
        (),
    ),
    "padding": ("padded 5 tokens wider", _padded, ()),
    "packing": ("packed in one row", lambda origin, batch: [origin[batch.sequences >= 0][None]], ()),
    "row-order": ("with its rows in another order", lambda origin, batch: [origin.flip(0)], ()),
    "masked-values": ("with {} where the mask is 0", lambda origin, batch: [origin], (7.0, -30.0)),
    "masked-non-finite": (
        "with {} where the mask is 0",
        lambda origin, batch: [origin],
        (float("nan"), float("inf"), float("-inf")),
    ),
}
