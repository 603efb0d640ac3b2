"""Ask a run's engine for one long prompt, the same after each sync: what it cached of it must be of the new weights."""

from __future__ import annotations

from typing import Any

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.agreement.engine import Engine
from pytest_rlregress.agreement.unchanged import unchanged

#: Ids of the prompt: more than two blocks of vLLM's cache on a CPU; and ids that follow.
PROMPT, ANSWER = 300, 4


def measure_cached(llm: Any, model: Any) -> float:
    """Return how far the engine's log-probabilities behind a long prompt are from the model's, in nats a token.

    The engine keeps the prompt in its cache. The random states, and the model's modes, are as before.
    """
    engine = Engine.of(llm)
    length = min(PROMPT, engine.max_model_len - ANSWER - 1)
    size = model.config.get_text_config().vocab_size
    prompt = [(step * 7919 + 13) % size for step in range(length)]
    with unchanged(model):
        [drawn] = engine.generate([prompt], ANSWER, temperature=1.0, seed=0, ignore_eos=True)
        [said] = logprobs.token_logprobs(model, [[*prompt, *drawn.ids]])
    return logprobs.mean_gap([drawn.logprobs], [said[-len(drawn.ids) :]])
