"""Remedies for new weights and adapters on their way to a running engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm import LLM

__all__ = ["forget_cached_prefixes"]


def forget_cached_prefixes(llm: LLM) -> None:
    """Make the engine compute every prompt anew: to be called after each update of its weights.

    Requests that are running are computed again from their first token, with the new weights, and go on: the tokens
    they have stay. By itself vLLM resets nothing while a request runs, and only its log says so.

    Args:
        llm: An engine with its new weights.

    Raises:
        RuntimeError: The engine refuses: it would go on from what it cached under the old weights.
    """
    if not llm.reset_prefix_cache(reset_running_requests=True):
        raise RuntimeError("the engine did not reset its prefix cache: it would go on from keys of the old weights")
