"""What an engine says of a prompt, as a reference policy or a teacher, must not depend on what it served before."""

from __future__ import annotations

import pytest

from pytest_rlregress.agreement.logprobs import floor, mean_gap, token_logprobs
from pytest_rlregress.scenarios.sampling.rollouts import ENGINE, RAW, eager

CACHED = 128  # tokens: a block of the KV cache on a CPU
PREFIX = [step * 37 % 1000 + 5 for step in range(CACHED + 16)]
SEQUENCES = [PREFIX + [(start * 91 + step * 53) % 1000 + 5 for step in range(24)] for start in range(3)]


def serve(engine, how):
    """What puts the prompts into the engine's prefix cache."""
    if how == "after generating":
        engine.generate(SEQUENCES, 2, ignore_eos=True)
    else:
        engine.logprobs(SEQUENCES)


@pytest.fixture
def allowed(trainer):
    """Ten times what two ways of computing in the trainer are apart, in nats a token."""
    return 10 * floor(trainer, SEQUENCES)


@ENGINE
@RAW
@pytest.mark.reproduces("prompt-logprobs-order")
@pytest.mark.parametrize("how", ["again", "after generating"])
def test_served_before(raw_engine, allowed, how):
    raw_engine.llm.reset_prefix_cache()
    empty = raw_engine.logprobs(SEQUENCES)
    serve(raw_engine, how)
    off = mean_gap(raw_engine.logprobs(SEQUENCES), empty)
    assert off < allowed, (
        f"silent: scored {how}, a prompt is {off:.3f} nats a token from what it was from an empty cache"
    )


@ENGINE
@RAW
@pytest.mark.guards("prompt-logprobs-order")
@pytest.mark.parametrize("how", ["again", "after generating"])
def test_as_the_trainer_says(raw_engine, trainer, subject, allowed, how):
    serve(raw_engine, how)
    with eager():
        found = subject(raw_engine.llm, SEQUENCES)
    off = mean_gap(found, token_logprobs(trainer, SEQUENCES))
    assert off < allowed, f"engine and trainer are {off:.2g} nats a token apart"


@ENGINE
@RAW
@pytest.mark.guards("prompt-logprobs-order")
def test_of_any_length(raw_engine, trainer, subject, allowed):
    """From one token, which has nothing before it, to all that the engine holds."""
    longest = (PREFIX * 2)[: raw_engine.max_model_len - 1]
    sequences = [PREFIX[:1], PREFIX[:2], longest]
    with eager():
        found = subject(raw_engine.llm, sequences)
    assert [len(row) for row in found] == [0, 1, len(longest) - 1]
    assert mean_gap(found, token_logprobs(trainer, sequences)) < allowed


@ENGINE
@RAW
@pytest.mark.guards("prompt-logprobs-order")
def test_what_it_asks_of_the_engine(raw_engine, subject, monkeypatch):
    """One greedy token, and a cache of its own for each prompt: the engine draws nothing and decodes nothing."""
    asked, generate = [], raw_engine.llm.generate

    def noted(prompts, params, **options):
        asked.append((prompts, params))
        return generate(prompts, params, **options)

    monkeypatch.setattr(raw_engine.llm, "generate", noted)
    with eager():
        for _ in range(2):
            subject(raw_engine.llm, [PREFIX[:4]] * 2)
    assert len({prompt["cache_salt"] for prompts, _ in asked for prompt in prompts}) == 4
    for prompts, params in asked:
        assert [prompt["prompt_token_ids"] for prompt in prompts] == [PREFIX[:4]] * 2
        assert (params.max_tokens, params.temperature, params.detokenize) == (1, 0.0, False)
