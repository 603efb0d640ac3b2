import pytest

from pytest_rlregress.agreement.logprobs import mean_gap
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.sampling.rollouts import (
    PROMPTS,
    PUBLISHED,
    completions_of,
    run,
    tolerance,
    trainer_logits,
)
from pytest_rlregress.stack.lazy import torch

ROWS = 1024  # of the model's head


def sample(engine, **fields):
    """Four completions of 32 tokens, at a temperature at which unlikely tokens come too."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=32, temperature=1.5, seed=7, ignore_eos=True, logprobs=0, **fields)
    return completions_of(run(engine, [{"prompt_token_ids": prompt} for prompt in PROMPTS], params))


def next_turn(engine, completions):
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": one.prompt_ids + one.ids} for one in completions]
    return completions_of(run(engine, prompts, SamplingParams(max_tokens=1, temperature=0.0)))


@PUBLISHED
@pytest.mark.reproduces("out-of-vocabulary-token")
def test_two_turns(published_engine, published_tokenizer):
    with act():
        completions = sample(published_engine)
        next_turn(published_engine, completions)
    known = set(published_tokenizer.get_vocab().values())
    ids = [token for one in completions for token in one.ids]
    unknown = [token for token in ids if token not in known]
    if unknown:
        silent(f"{len(unknown)} of {len(ids)} sampled ids are none of the tokenizer's, and the next turn takes them")


@PUBLISHED
@pytest.mark.guards("out-of-vocabulary-token")
@pytest.mark.parametrize("tokenizer", ["published_tokenizer", "gapped_tokenizer"])
def test_only_what_has_text(request, published_engine, trainer, subject, tokenizer):
    tokenizer = request.getfixturevalue(tokenizer)
    allowed = subject(tokenizer, ROWS)
    completions = sample(published_engine, allowed_token_ids=allowed)
    known = set(tokenizer.get_vocab().values())
    assert {token for one in completions for token in one.ids} <= known
    assert len(next_turn(published_engine, completions)) == len(completions)
    # The engine's log-probabilities are of the allowed ids, and so are the trainer's over them.
    found = []
    for logits, ids in trainer_logits(trainer, completions):
        over = torch.full_like(logits, -torch.inf)
        over[:, allowed] = logits[:, allowed]
        found.append((over / 1.5).log_softmax(-1).gather(-1, ids[:, None])[:, 0].tolist())
    off = mean_gap([one.logprobs for one in completions], found)
    assert off < tolerance(trainer, completions), f"engine and trainer are {off:.2g} nats a token apart"


@pytest.mark.guards("out-of-vocabulary-token")
@pytest.mark.parametrize("rows", [ROWS, 900, 850], ids=["padded", "equal", "smaller"])
def test_ids_that_model_and_tokenizer_have(published_tokenizer, subject, rows):
    assert subject(published_tokenizer, rows) == list(range(min(rows, 900)))


@pytest.mark.guards("out-of-vocabulary-token")
def test_ids_without_a_token_are_left_out(gapped_tokenizer, subject):
    assert subject(gapped_tokenizer, ROWS) == [*range(600), *range(700, 900)]


@pytest.mark.guards("out-of-vocabulary-token")
def test_added_tokens_count_where_the_model_has_rows(sharp_qwen, subject):
    tokenizer = sharp_qwen.tokenizer()
    tokenizer.add_tokens(["<tool>", "</tool>"])
    with act():
        assert subject(tokenizer, ROWS + 64) == list(range(ROWS + 2))
    assert subject(tokenizer, ROWS) == list(range(ROWS)), "the model has no row for the added tokens"
