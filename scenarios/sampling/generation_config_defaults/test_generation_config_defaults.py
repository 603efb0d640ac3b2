import inspect

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
    trainer_logprobs,
)

TEMPERATURE_ONE = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 16}  # as OpenAI's own fields go
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
NEUTRAL |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}


def as_the_server(engine, body):
    """What vLLM's server makes of the body of a completion request: its own code, without HTTP in between."""
    try:
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    except ImportError:  # up to vLLM 0.13 or so
        from vllm.entrypoints.openai.protocol import CompletionRequest

    request = CompletionRequest(model="model", prompt=PROMPTS[0], **body)
    defaults = engine.llm.llm_engine.model_config.get_diff_sampling_param()
    arguments = {"max_tokens": request.max_tokens, "default_sampling_params": defaults}
    if "logits_processor_pattern" in inspect.signature(request.to_sampling_params).parameters:
        arguments["logits_processor_pattern"] = None
    return request.to_sampling_params(**arguments)


@PUBLISHED
@pytest.mark.reproduces("generation-config-defaults")
@pytest.mark.parametrize("client", ["offline", "server"])
def test_fields_left_out(published_engine, trainer, client):
    """By what is sampled: how many tokens are not among the 20 likeliest, and how many the trainer expects."""
    engine = published_engine
    params = as_the_server(engine, TEMPERATURE_ONE) if client == "server" else None
    with act():
        outputs = run(engine, [{"prompt_token_ids": prompt} for prompt in PROMPTS * 4], params)
    outside, tokens, expected, variance = 0, 0, 0.0, 0.0
    for logits, ids in trainer_logits(trainer, completions_of(outputs)):
        likeliest = logits.softmax(-1).topk(20)
        outside += int((likeliest.indices != ids[:, None]).all(-1).sum())
        mass = likeliest.values.sum(-1)
        tokens, expected = tokens + len(ids), expected + float((1 - mass).sum())
        variance += float((mass * (1 - mass)).sum())
    # Six standard deviations: a sample of the trainer's own policy comes there once in 10^9.
    if not outside > expected - 6 * variance**0.5:
        silent(
            f"{outside} of {tokens} tokens are not among the trainer's 20 likeliest, of which it expects {expected:.0f}"
        )


@PUBLISHED
@pytest.mark.guards("generation-config-defaults")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("client", ["offline", "server"])
def test_the_trainers_policy(published_engine, trainer, subject, client, temperature):
    from vllm import SamplingParams

    with act():
        fields = subject(24, temperature=temperature, logprobs=1, seed=7, ignore_eos=True)
    params = as_the_server(published_engine, fields) if client == "server" else SamplingParams(**fields)
    completions = completions_of(run(published_engine, [{"prompt_token_ids": prompt} for prompt in PROMPTS], params))
    assert [len(one.ids) for one in completions] == [24] * len(PROMPTS), "not of the length that was asked for"
    off = mean_gap([one.logprobs for one in completions], trainer_logprobs(trainer, completions, temperature))
    assert off < tolerance(trainer, completions, temperature), (
        f"by way of {client}, engine and trainer are {off:.2g} nats a token apart"
    )


@PUBLISHED
@pytest.mark.guards("generation-config-defaults")
@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"temperature": 0.6, "top_p": 0.9},
        {"top_k": 5, "min_p": 0.1},
        {"repetition_penalty": 1.2, "seed": 3},
        {"presence_penalty": 0.4, "frequency_penalty": 0.6, "logprobs": 2},
    ],
    ids=lambda chosen: ",".join(chosen) or "nothing",
)
def test_what_was_chosen_arrives(published_engine, subject, chosen):
    fields = subject(7, **chosen)
    assert fields.items() >= chosen.items()
    params = as_the_server(published_engine, fields)
    for name, value in {**NEUTRAL, "max_tokens": 7, **chosen}.items():
        assert getattr(params, name) == value, f"{name} is {getattr(params, name)}, and not {value}"
    assert params.top_k == chosen.get("top_k", params.top_k if params.top_k <= 0 else "off")
