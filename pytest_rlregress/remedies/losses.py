"""Remedies for rewards, advantages and losses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = ["check_groups", "constant_length_mean", "disable_dropout", "group_advantages", "kl_term", "place_scores"]
__all__ += ["token_mean"]


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
        raise ValueError(f"a micro batch alone has {own} trained tokens, but batch_tokens is {batch_tokens}")
    return torch.where(trained, losses, 0).sum() * (ranks / batch_tokens)


def constant_length_mean(
    losses: torch.Tensor, mask: torch.Tensor, batch_sequences: int, max_tokens: int, ranks: int = 1
) -> torch.Tensor:
    """Divide the sum of a micro batch's token losses by the sequences of the whole batch and by a constant length.

    Dr. GRPO's aggregation (https://arxiv.org/abs/2503.20783): a token weighs the same in every step of a run, whatever
    else is in its batch. Added up over micro batches and averaged over ranks as ``token_mean``.

    Args:
        losses: ``[rows, tokens]``, floating. What stands where the mask is 0 does not count, NaN included.
        mask: ``[rows, tokens]``, bool or integer: 1 for a token that is trained on, else 0.
        batch_sequences: Sequences in all micro batches of one optimizer step, on all ranks.
        max_tokens: The longest response that the run allows, in tokens.
        ranks: Over how many ranks gradients are averaged.

    Returns:
        Scalar of the losses' dtype.

    Raises:
        ValueError: A row has more trained tokens than ``max_tokens``, or there are more rows than ``batch_sequences``.
    """
    import torch

    trained = mask.bool()
    lengths = trained.sum(1)
    if (lengths > max_tokens).any():
        raise ValueError(f"a response has {lengths.max()} trained tokens, the constant length is {max_tokens}")
    if len(mask) > batch_sequences:
        raise ValueError(f"a micro batch has {len(mask)} rows, its whole batch {batch_sequences}")
    return torch.where(trained, losses, 0).sum() * (ranks / (batch_sequences * max_tokens))


def place_scores(scores: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Put each response's score on its last trained token, from where returns are carried back.

    Args:
        scores: ``[rows]``, floating.
        response_mask: ``[rows, tokens]``, bool or integer: 1 for a token by the policy, 0 for a tool's and for padding.

    Returns:
        ``[rows, tokens]``, dtype of ``scores``: 0 elsewhere, and in rows without a trained token. Both arguments are
        left as they are.
    """
    import torch

    places = torch.arange(response_mask.shape[1], device=response_mask.device)
    last = torch.where(response_mask.bool(), places, -1).amax(1, keepdim=True)
    return torch.where(places == last, scores[:, None], 0)


def check_groups(groups: Sequence[Hashable] | np.ndarray, size: int) -> np.ndarray:
    """Refuse a batch whose prompts have not as many responses each as were asked for, and return the group ids.

    Args:
        groups: For each row the id of its prompt, in any order.
        size: Responses for each prompt.

    Returns:
        ``[rows]``, dtype object, the ids as they were: what verl takes for ``index``.

    Raises:
        ValueError: A group is of another size; names the first and its size. ``size`` is below 2: there is no baseline.
    """
    from collections import Counter

    from pytest_rlregress.remedies.batch import object_column

    if size < 2:
        raise ValueError(f"groups of {size} have no baseline: a response is compared with another of its prompt")
    ids = object_column(groups)
    for group, rows in Counter(ids.tolist()).items():
        if rows != size:
            raise ValueError(f"group {group!r} has {rows} responses, {size} were asked for: one id for each prompt")
    return ids


def group_advantages(
    rewards: torch.Tensor,
    response_mask: torch.Tensor,
    groups: Sequence[Hashable],
    normalise: bool = True,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """Compare each response's reward with its group's, leaving out what isn't a reward and what is not trained on.

    A row whose reward is not finite, or that has no trained token, counts in no mean and no deviation; its own
    advantage is 0. So is that of a row whose group has no other, and exactly that of equal rewards.

    Args:
        rewards: ``[rows]``, floating, one a response; left as they are.
        response_mask: ``[rows, tokens]``: 1 for a token that is trained on, else 0.
        groups: For each row the id of its prompt.
        normalise: Whether to divide by the group's standard deviation (of a sample) plus ``epsilon``.
        epsilon: In units of the reward.

    Returns:
        ``[rows, tokens]``, dtype of ``rewards``: the same for each trained token of a row, 0 for the others.

    Raises:
        ValueError: The three differ in rows.
    """
    import torch

    if not len(rewards) == len(response_mask) == len(groups):
        rows = f"{len(rewards)} rewards, a mask of {len(response_mask)} rows, {len(groups)} group ids"
        raise ValueError(f"{rows}: wanted are as many of each")
    mask = response_mask.bool()
    counts = (torch.isfinite(rewards) & mask.any(1)).tolist()
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        if counts[row]:
            members.setdefault(group, []).append(row)
    advantages = torch.zeros_like(rewards)
    for places in members.values():
        own = rewards[places].double()
        if (own == own[0]).all():  # all of equal rewards, or the only one
            continue
        centred = own - own.mean()
        advantages[places] = (centred / (own.std() + epsilon) if normalise else centred).to(rewards.dtype)
    return advantages[:, None] * mask


def kl_term(
    log_probs: torch.Tensor, ref_log_probs: torch.Tensor, old_log_probs: torch.Tensor | None = None
) -> torch.Tensor:
    """Estimate the KL divergence from the reference for a loss: in the mean its value and its gradient are both right.

    The value is Schulman's k3 (http://joschu.net/blog/kl-approx.html), whose own gradient is not the divergence's; the
    gradient is that of k2, half of the squared difference. Both are weighted by the ratio to the policy that sampled.

    Args:
        log_probs: Of the sampled tokens by the policy that is trained, in nats; floating, any shape.
        ref_log_probs: By the reference; the same shape. Gets no gradient.
        old_log_probs: By the policy that sampled; the same shape, or None where that is the policy itself. Gets no
            gradient.

    Returns:
        The shape and dtype of ``log_probs``, at least 0.
    """
    import torch

    now, reference = log_probs.detach(), ref_log_probs.detach()
    ratio = torch.ones_like(now) if old_log_probs is None else (now - old_log_probs.detach()).exp()
    value = ratio * (torch.expm1(reference - now) - (reference - now))
    slope = ratio * (now - reference)
    return value + slope * (log_probs - now)


def disable_dropout(model: torch.nn.Module) -> int:
    """Set every dropout rate in a model to 0, so that it says the same of a token whenever it is asked.

    Old log-probabilities and new ones then differ by the update alone, also in training mode, on which gradient
    checkpointing may depend. Rates are those of torch's dropout modules, LoRA's among them, and numbers that a module
    calls ``dropout`` or something with it: those that attention reads aren't modules.

    Args:
        model: Training mode, configuration and parameters are left as they are.

    Returns:
        How many rates were above 0.
    """
    from torch.nn.modules.dropout import _DropoutNd

    changed = 0
    for module in model.modules():
        names = ["p"] if isinstance(module, _DropoutNd) else [name for name in vars(module) if "dropout" in name]
        for name in names:
            rate = getattr(module, name)
            if isinstance(rate, float) and rate > 0:
                setattr(module, name, 0.0)
                changed += 1
    return changed
