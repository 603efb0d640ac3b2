import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent

LIMIT = 4096  # of fixtures vllm_server and vllm_engine
MAX_TOKENS, PROMPT_LENGTH = 4000, 1297  # as documented: 2799 would have fitted
TOKEN = 100

# A server takes half a minute until it answers: it starts while the offline tests run.
MEANWHILE = pytest.mark.usefixtures("vllm_server")


def client_of(server):
    import openai

    return openai.OpenAI(base_url=server.base_url + "/v1", api_key="none", max_retries=0, timeout=300)


def complete(server, prompt_length, max_tokens):
    """Ask the server through OpenAI's client for greedy tokens, end-of-turn tokens ignored."""
    return client_of(server).completions.create(
        model=server.model,
        prompt=[TOKEN] * prompt_length,
        max_tokens=max_tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
    )


def generate(engine, prompt_length, max_tokens):
    """Ask the offline engine for the same; the number of tokens that came."""
    [completion] = engine.generate([[TOKEN] * prompt_length], max_tokens, temperature=0.0, ignore_eos=True)
    return len(completion.ids)


def check_clamped(clamp, max_tokens, prompt_length, max_model_len):
    """What holds of a clamp: all that fits and no more, at least one token, an error where there is no room."""
    if prompt_length >= max_model_len:
        with pytest.raises(ValueError, match=str(prompt_length)):
            clamp(max_tokens, prompt_length, max_model_len)
        return None
    clamped = clamp(max_tokens, prompt_length, max_model_len)
    assert 1 <= clamped <= max_tokens, f"asked for {max_tokens} tokens, clamped to {clamped}"
    assert prompt_length + clamped <= max_model_len, f"{prompt_length} + {clamped} tokens in {max_model_len}"
    assert clamped == max_tokens or prompt_length + clamped == max_model_len, f"{clamped} tokens leave room unused"
    return clamped


@pytest.mark.reproduces("max-tokens-overflow")
@MEANWHILE
def test_offline_cuts_short(vllm_engine):
    came = generate(vllm_engine, PROMPT_LENGTH, MAX_TOKENS)
    if came != MAX_TOKENS:
        silent(f"asked for {MAX_TOKENS} tokens after a prompt of {PROMPT_LENGTH}, got {came}, and no error")


@pytest.mark.reproduces("max-tokens-overflow")
@MEANWHILE
def test_offline_without_room(vllm_engine):
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, detokenize=False)
    with act():
        vllm_engine.llm.generate([{"prompt_token_ids": [TOKEN] * LIMIT}], params)  # the fixture's own would not send it


@pytest.mark.guards("max-tokens-overflow")
@MEANWHILE
@pytest.mark.parametrize("excess", [-1, 0, 1, LIMIT])
def test_offline_clamped(vllm_engine, subject, excess):
    prompt_length, room = LIMIT - 16, 16
    with act():
        clamped = check_clamped(subject, room + excess, prompt_length, vllm_engine.max_model_len)
    assert generate(vllm_engine, prompt_length, clamped) == clamped == min(room + excess, room)


@pytest.mark.reproduces("max-tokens-overflow")
@pytest.mark.parametrize(
    ("prompt_length", "max_tokens"),
    [(PROMPT_LENGTH, MAX_TOKENS), (PROMPT_LENGTH, LIMIT - PROMPT_LENGTH + 1), (PROMPT_LENGTH, LIMIT + 1), (LIMIT, 1)],
    ids=["documented", "one-too-many", "alone-over-the-limit", "no-room"],
)
def test_server_refuses(vllm_server, prompt_length, max_tokens):
    complete(vllm_server, prompt_length, max_tokens)


@pytest.mark.guards("max-tokens-overflow")
def test_server_serves_the_documented_request(vllm_server, subject):
    with act():
        clamped = check_clamped(subject, MAX_TOKENS, PROMPT_LENGTH, LIMIT)
    served = complete(vllm_server, PROMPT_LENGTH, clamped)
    assert (served.usage.prompt_tokens, served.usage.completion_tokens) == (1297, 2799)
    assert served.choices[0].finish_reason == "length"


@pytest.mark.guards("max-tokens-overflow")
def test_chat_counts_the_template_too(vllm_server, subject, tiny_qwen):
    messages = [{"role": "user", "content": "What is 48 divided by 6? " * 60}]
    text = tiny_qwen.tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt_length = len(tiny_qwen.tokenizer().encode(text, add_special_tokens=False))
    limit = prompt_length + 8  # a budget of one's own, below the engine's: quick to fill
    with act():
        served = client_of(vllm_server).chat.completions.create(
            model=vllm_server.model,
            messages=messages,
            max_tokens=check_clamped(subject, MAX_TOKENS, prompt_length, limit),
            extra_body={"ignore_eos": True},
        )
    assert (served.usage.prompt_tokens, served.usage.total_tokens) == (prompt_length, limit)
