"""Remedies for sampling: what an engine samples from, and the log-probabilities it gives."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "encode_prompt",
    "explicit_sampling",
    "kept_random_state",
    "request_seed",
    "sampled_logprobs",
    "tokenizer_ids",
    "truncated_logprobs",
]


def sampled_logprobs(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the log-probabilities of tokens at the temperature of their sampling, by the trainer's logits.

    To be compared with those of an engine started with ``logprobs_mode="processed_logprobs"``. vLLM's default,
    ``raw_logprobs``, is of temperature 1 whatever the temperature was; dividing it by the temperature does not help.

    Args:
        logits: ``[…, tokens, vocabulary]``, any float dtype, computed with in float32; left as they are.
        ids: ``[…, tokens]``, integers.
        temperature: That of the sampling.

    Returns:
        ``[…, tokens]``, float32, in nats, with the gradient of ``logits``.

    Raises:
        ValueError: ``temperature`` is not above 0: a greedy token has no such number; or the shapes do not fit.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature is {temperature}: tokens that are not sampled have no log-probability to compare"
        )
    if logits.shape[:-1] != ids.shape:
        raise ValueError(f"logits of shape {tuple(logits.shape)} for ids of shape {tuple(ids.shape)}")
    return (logits.float() / temperature).log_softmax(-1).gather(-1, ids.long().unsqueeze(-1)).squeeze(-1)


def truncated_logprobs(
    logits: torch.Tensor,
    ids: torch.Tensor,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    sampled_by: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the log-probabilities of tokens among the ids that ``min_p``, ``top_k`` and ``top_p`` left.

    As vLLM's ``processed_logprobs`` are: what is left adds up to 1. An id is left by ``min_p`` if it has that share of
    the likeliest id's probability, by ``top_k`` if it is among so many likeliest, by ``top_p`` if those likelier have
    less than that probability; in this order, each among what the one before left, at the temperature. An id on the
    border by rounding may be left here and not in the engine: where that gives its set of ids, it is the better source.

    Args:
        logits: ``[…, tokens, vocabulary]``, any float dtype, computed with in float32; left as they are.
        ids: ``[…, tokens]``, integers. They were sampled, so they count as left whatever rounding says.
        temperature: That of the sampling.
        top_k: 0 or below: all.
        top_p: 1: all.
        min_p: 0: all.
        sampled_by: Logits of the policy that sampled, if ``logits`` are those of a later one: they decide what is left.

    Returns:
        ``[…, tokens]``, float32, finite, in nats, with the gradient of ``logits``.

    Raises:
        ValueError: ``temperature`` is not above 0, ``top_p`` not in (0, 1], ``min_p`` not in [0, 1], or the shapes do
            not fit.
    """
    import torch

    if not 0 < top_p <= 1 or not 0 <= min_p <= 1:
        raise ValueError(f"top_p is {top_p}, of (0, 1], and min_p {min_p}, of [0, 1]")
    decides = logits if sampled_by is None else sampled_by
    if decides.shape != logits.shape:
        raise ValueError(f"logits of shape {tuple(logits.shape)}, sampled by those of shape {tuple(decides.shape)}")
    whole = sampled_logprobs(logits, ids, temperature)
    left = (decides.detach().float() / temperature).log_softmax(-1)
    if min_p > 0:
        probabilities = left.exp()
        left = left.masked_fill(probabilities < min_p * probabilities.amax(-1, keepdim=True), -torch.inf)
    if 0 < top_k < left.shape[-1]:
        left = left.masked_fill(left < left.topk(top_k).values[..., -1:], -torch.inf)
    if top_p < 1:
        ordered, order = left.softmax(-1).sort(descending=True)
        likelier = ordered.cumsum(-1) - ordered
        left = left.masked_fill(
            torch.zeros_like(left, dtype=torch.bool).scatter(-1, order, likelier >= top_p), -torch.inf
        )
    kept = (left > -torch.inf).scatter(-1, ids.long().unsqueeze(-1), True)
    mass = (logits.float() / temperature).log_softmax(-1).masked_fill(~kept, -torch.inf).logsumexp(-1)
    return whole - mass


def explicit_sampling(max_tokens: int, **chosen: Any) -> dict[str, Any]:
    """Return the fields that an engine would fill from the model's ``generation_config.json``, neutral unless chosen.

    For ``vllm.SamplingParams`` and for the body of a request to vLLM's server alike.

    Args:
        max_tokens: Of a completion.
        chosen: Fields to be sent as they are, these and any other (``temperature=0.7``, ``seed=1``, ``logprobs=0``).

    Returns:
        By default temperature, top_p and repetition_penalty are 1, min_p, presence_penalty and frequency_penalty 0,
        top_k is off (-1, which every release takes).

    Raises:
        ValueError: A field is None, which an engine takes for one that was left out.
    """
    fields = {
        "max_tokens": max_tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        **chosen,
    }
    left_out = [name for name, value in fields.items() if value is None]
    if left_out:
        raise ValueError(
            f"None for {', '.join(left_out)}: the engine would take its own default; say which value is meant"
        )
    return fields


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return a prompt's ids, with one beginning-of-text token where the tokenizer puts one or the text has one.

    To be given to the engine as they are (``{"prompt_token_ids": ids}``), and to the trainer: an engine that is given
    the text a chat template rendered puts a second one before it.

    Args:
        tokenizer: Of the model.
        text: Rendered by a chat template, or plain. Special tokens in it become their ids.

    Returns:
        No end-of-text token is put behind, also where the tokenizer does that: the prompt is to be continued.
    """
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:1] != [bos] and tokenizer.encode("")[:1] == [bos]:
        return [bos, *ids]
    return ids


def request_seed(seed: int, *place: int) -> int:
    """Return a seed for one request to an engine, from the run's seed and the place of the request in the run.

    Args:
        seed: Of the run.
        place: What tells the request from every other: such as step, replica, prompt and copy, always in one order.

    Returns:
        From 0 to 2^63 - 1, the same for the same arguments. Those of two places are far apart, since vLLM gives the
        ``n`` completions of a request ``seed``, ``seed + 1``, ….

    Raises:
        ValueError: There is no place: every request would have one seed.
    """
    if not place:
        raise ValueError("give step, replica, prompt and copy: without them every request gets the same seed")
    text = " ".join(str(int(number)) for number in (seed, *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Put the global random states of Python, numpy and torch back at the end of a block to what they were before it.

    For the start of an engine in the trainer's process, which seeds them all. The block may fail: they are put back.
    CUDA's are too, of every device, if CUDA is in use when the block begins. An engine in this process may sample with
    torch's global state: around each ``generate()`` it would draw the same every time, so give its requests seeds.
    """
    import numpy as np
    import torch

    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def tokenizer_ids(tokenizer: PreTrainedTokenizerBase, model_vocabulary: int) -> list[int]:
    """Return the ids that may be sampled: the model has logits for them and the tokenizer a token.

    To be sent with each request as ``allowed_token_ids``, and to be the only ids of the trainer's softmax: a model's
    head is padded (Qwen 2.5 7B: 152064 for 151665 tokens), and what is sampled of the padding has no text.

    Args:
        tokenizer: Of the model; added tokens count, gaps between the ids do not.
        model_vocabulary: Rows of the model's head. An engine refuses ids from there on.

    Returns:
        Ascending.
    """
    return sorted({token for token in tokenizer.get_vocab().values() if token < model_vocabulary})
