"""Remedies for sampling: what an engine samples from, and the log-probabilities it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["sampled_logprobs"]


def sampled_logprobs(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities of tokens at the temperature that they were sampled at, by the trainer's logits.

    To be compared with those of an engine started with ``logprobs_mode="processed_logprobs"``. vLLM's default,
    ``raw_logprobs``, is of temperature 1 whatever the temperature was; dividing it by the temperature does not help.

    Args:
        logits: ``[…, tokens, vocabulary]``, any float dtype, computed with in float32; left as they are.
        ids: ``[…, tokens]``, integers.
        temperature: That of the sampling.

    Returns:
        ``[…, tokens]``, float32, in nats, with the gradient of ``logits``.

    Raises:
        ValueError: ``temperature`` is not above 0: a greedy token has no such log-probability; or the shapes do not fit.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}: tokens that are not sampled have no log-probability to compare")
    if logits.shape[:-1] != ids.shape:
        raise ValueError(f"logits of shape {tuple(logits.shape)} for ids of shape {tuple(ids.shape)}")
    return (logits.float() / temperature).log_softmax(-1).gather(-1, ids.long().unsqueeze(-1)).squeeze(-1)
