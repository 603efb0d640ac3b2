"""Remedies for rewards, advantages and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["token_mean"]


def token_mean(losses: torch.Tensor, mask: torch.Tensor, batch_tokens: int, ranks: int = 1) -> torch.Tensor:
    """Divide the sum of a micro batch's token losses by the trained tokens of the whole batch.

    Added up over the micro batches, and averaged over ranks as data parallelism does with gradients, this is the mean
    over all trained tokens, however they are split.

    Args:
        losses: ``[rows, tokens]``, floating. What stands where the mask is 0 does not count, NaN included.
        mask: ``[rows, tokens]``, bool or integer: 1 for a token that is trained on, else 0.
        batch_tokens: Trained tokens in all micro batches of one optimizer step, on all ranks.
        ranks: Over how many ranks gradients are averaged.

    Returns:
        Scalar of the losses' dtype; 0, with a gradient of 0, for a micro batch without trained tokens.

    Raises:
        ValueError: ``batch_tokens`` is less than the micro batch's own, or 0.
    """
    import torch

    trained = mask.bool()
    own = int(trained.sum())
    if batch_tokens < max(own, 1):
        raise ValueError(f"a micro batch has {own} trained tokens, so its whole batch has not {batch_tokens}")
    return torch.where(trained, losses, 0).sum() * (ranks / batch_tokens)
