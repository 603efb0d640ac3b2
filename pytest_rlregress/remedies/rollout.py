"""The engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlregress.engine_log import EngineLog

if TYPE_CHECKING:
    import torch

__all__ = ["clamp_max_tokens", "contiguous_ids", "watch_engine_log"]


def clamp_max_tokens(max_tokens: int, prompt_length: int, max_model_len: int) -> int:
    """The most tokens of ``max_tokens`` that fit behind a prompt: ``prompt_length + result <= max_model_len``.

    All three in tokens; the prompt's as the engine counts them, chat template included. Clamp each request: vLLM's
    server refuses one that does not fit, and its offline ``LLM.generate`` silently stops short.

    Raises:
        ValueError: The prompt leaves no room for a single token, or none is asked for.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}: at least 1 is needed")
    room = max_model_len - prompt_length
    if room < 1:
        raise ValueError(
            f"no room to generate: the prompt has {prompt_length} tokens and max_model_len, which holds prompt and "
            f"completion, is {max_model_len}. Shorten the prompt or raise max_model_len."
        )
    return min(max_tokens, room)


def contiguous_ids(ids: torch.Tensor) -> torch.Tensor:
    """Token ids as an embedding wants them: int64 and contiguous, whatever view of a padded batch they were.

    Args:
        ids: Integers of any shape, such as a column slice or a transposed view of ``[batch, tokens]``.

    Returns:
        The same ids in the same shape.

    Raises:
        ValueError: ``ids`` are no integers. Casting would make other ids of them: bfloat16 is exact only up to 256.
    """
    if ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"token ids are {ids.dtype}, which does not hold every id: keep them int64 throughout")
    return ids.long().contiguous()


def watch_engine_log(log: Path, patience: float) -> Callable[[], None]:
    """Learn from an inference server's own log that it failed, where the trainer only sees that nothing comes.

    What the server logs from now on counts: vLLM's, or another's that uvicorn runs with its access log on. A request
    completed after an error takes the error back, so that one bad prompt does not end a run that goes on.

    Args:
        log: File the server writes to. It need not exist yet, and may be of any size, truncated or replaced.
        patience: Seconds without a completed request after an error; choose more than the longest rollout takes.

    Returns:
        The check to call in the orchestrator's loop: it raises RuntimeError with the engine's words.
    """
    engine = EngineLog(log)

    def check() -> None:
        failure = engine.failure(patience)
        if failure:
            raise RuntimeError(f"no request was completed since the engine logged an error in {log}:\n{failure}")

    return check
