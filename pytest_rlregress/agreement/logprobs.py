"""Log-probabilities of given ids by a trainer's model, and how far two ways of computing them are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def token_logprobs(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], temperature: float = 1.0
) -> list[list[float]]:
    """Log-probability in nats of token t given the tokens before it, for t >= 1: ``len(sequence) - 1`` numbers each.

    Each sequence goes through the model alone, so that there is no padding and no mask to get wrong.

    Args:
        model: A causal language model; its mode and its dtype are left as they are.
        sequences: Token ids, prompt and completion in one.
        temperature: What the logits are divided by, as sampling does.
    """
    import torch

    found = []
    with torch.no_grad():
        for ids in sequences:
            row = torch.tensor([list(ids)], device=model.device)
            logprobs = (model(input_ids=row).logits[0, :-1].float() / temperature).log_softmax(-1)
            found.append(logprobs.gather(-1, row[0, 1:, None])[:, 0].tolist())
    return found


def decoded_logprobs(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """``token_logprobs`` as an engine computes them: token by token, what came before from the model's own cache."""
    import torch

    found = []
    with torch.no_grad():
        for ids in sequences:
            row, cache, logprobs = torch.tensor([list(ids)], device=model.device), None, []
            for step in range(len(ids) - 1):
                output = model(input_ids=row[:, step : step + 1], past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                logprobs.append(output.logits[0, -1].float().log_softmax(-1)[row[0, step + 1]].item())
            found.append(logprobs)
    return found


def mean_gap(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Mean |difference| of a token, in nats, of two lists of as many rows of as many tokens.

    Raises:
        ValueError: The rows differ in number or in length, or there is no token at all.
    """
    gaps = [abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    if not gaps:
        raise ValueError("no token to compare")
    return sum(gaps) / len(gaps)


def floor(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> float:
    """Mean |difference| in nats of two ways of computing that are equal but for rounding: what agreement can be had.

    The sequences whole, and token by token as an engine decodes them. 1e-7 or so in float32.
    """
    return mean_gap(token_logprobs(model, sequences), decoded_logprobs(model, sequences))
