import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent

GROUP = 32
ENDS = ["<|im_end|>", "<|endoftext|>", "</tool_call>"]  # the generation config's two, and one that the request adds


@pytest.fixture(scope="module")
def ends(tiny_qwen):
    return tiny_qwen.tokenizer().convert_tokens_to_ids(ENDS)


@pytest.fixture(scope="module")
def sampled(vllm_engine, tiny_qwen, ends):
    """Completions of up to 8 tokens of a random policy, each end made as likely as 55 other tokens together."""
    prompt = tiny_qwen.tokenizer().encode("How big is Lisbon?")
    bias = dict.fromkeys(ends, 4.0)
    completions = vllm_engine.generate([prompt] * GROUP, 8, seed=0, stop_token_ids=ends, logit_bias=bias)
    seen = {(one.finish_reason, one.ids[-1] if one.finish_reason == "stop" else None) for one in completions}
    assert seen == {("length", None), *(("stop", end) for end in ends)}, "not every way to end was sampled"
    return completions


@pytest.mark.reproduces("truncation-told-by-eos-id")
def test_grpo_trainer(sampled, tiny_qwen, tmp_path):
    from pytest_rlregress.scenarios.tokens import grpo

    def reward(completions, **columns):
        return [float(number % 2) for number, _ in enumerate(completions)]

    trainer = grpo.trainer(tiny_qwen.directory, tiny_qwen.tokenizer(), reward, tmp_path, GROUP)
    with act():
        mask = grpo.scored(trainer, [one.ids for one in sampled])["completion_mask"]
    finished = [row.tolist() for row, one in zip(mask, sampled, strict=True) if one.finish_reason == "stop"]
    left_out = sum(not any(row) for row in finished)
    if left_out != 0:
        silent(f"{left_out} of {len(finished)} finished completions are left out of the loss")


@pytest.mark.guards("truncation-told-by-eos-id")
@pytest.mark.parametrize("told", ["by the engine", "by the last id"])
def test_cut_is_what_the_engine_cut(sampled, subject, ends, told):
    """Also where the engine's word is lost on its way, with every id that ends a completion."""
    reasons = [one.finish_reason if told == "by the engine" else None for one in sampled]
    stop_ids = [] if told == "by the engine" else ends
    cut = subject([one.ids for one in sampled], reasons, stop_ids)
    assert cut == [one.finish_reason == "length" for one in sampled]
