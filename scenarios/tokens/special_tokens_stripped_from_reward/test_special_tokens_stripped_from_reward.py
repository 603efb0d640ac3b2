import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.scenarios.batch.masks import TEXT
from pytest_rlregress.stack.lazy import np, torch

# What is well-formed, by the token that begins it: <think> is one of the vocabulary's special tokens in some families
# and an ordinary one in others, <|python_tag|> is special in Llama 3.1.
WELL_FORMED = {
    "<think>": "<think>\nA town by the sea.\n</think>\nHalf a million.",
    "<|python_tag|>": '<|python_tag|>search(query="Lisbon")',
}
EVERY_TAG = pytest.mark.parametrize("tag", WELL_FORMED)


def tokenizer_of(tiny_qwen, template="llama3"):
    """With ``<think>`` and ``</think>`` as special tokens."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    plain = tiny_qwen.tokenizer(template)
    backend = json.loads(plain.backend_tokenizer.to_str())
    for token in backend["added_tokens"]:
        token["special"] |= token["content"] in ("<think>", "</think>")
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)),
        chat_template=plain.chat_template,
        eos_token=plain.eos_token,
        pad_token=plain.pad_token,
    )


def sampled(tokenizer, text):
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


def well_formed(text):
    """A format reward, to the end of the text."""
    return float(
        any(
            re.search(pattern, text, re.DOTALL)
            for pattern in (r"^<think>.*</think>.*[.]$", r"^<\|python_tag\|>\w+\(.*\)$")
        )
    )


@EVERY_TAG
@pytest.mark.reproduces("special-tokens-stripped-from-reward")
def test_verl_reward_manager(tiny_qwen, tag):
    from verl import DataProto
    from verl.workers.reward_manager.naive import NaiveRewardManager

    def score(data_source, solution_str, ground_truth, extra_info):
        return well_formed(solution_str)

    tokenizer = tokenizer_of(tiny_qwen)
    response = sampled(tokenizer, WELL_FORMED[tag])
    tensors = {"prompts": [5, 6], "responses": response, "attention_mask": [1] * (2 + len(response))}
    columns = {"data_source": "math", "reward_model": {"ground_truth": "500000"}}
    batch = DataProto.from_dict(
        {key: torch.tensor([ids]) for key, ids in tensors.items()},
        {key: np.array([value], dtype=object) for key, value in columns.items()},
    )
    manager = NaiveRewardManager(tokenizer, num_examine=0, compute_score=score)
    with act():
        reward = manager(batch).sum().item()
    if reward != 1:
        assert reward == 0
        silent(f"verl rewards a well-formed completion with {reward}")


@EVERY_TAG
@pytest.mark.reproduces("special-tokens-stripped-from-reward")
def test_grpo_trainer(tiny_qwen, tag, tmp_path):
    from pytest_rlregress.scenarios.tokens import grpo

    rewards = []

    def reward(completions, **columns):
        rewards.extend(well_formed(completion[0]["content"]) for completion in completions)
        return rewards

    tokenizer = tokenizer_of(tiny_qwen)
    trainer = grpo.trainer(tiny_qwen.directory, tokenizer, reward, tmp_path, group=2)
    with act():
        grpo.scored(trainer, [sampled(tokenizer, WELL_FORMED[tag])] * 2)
    if rewards != [1, 1]:
        assert rewards == [0, 0]
        silent(f"TRL rewards well-formed completions with {rewards}")


@EVERY_TAG
@pytest.mark.guards("special-tokens-stripped-from-reward")
@pytest.mark.parametrize("padding", [0, 3])
def test_well_formed_is_rewarded(tiny_qwen, subject, tag, padding):
    tokenizer = tokenizer_of(tiny_qwen)
    ids = sampled(tokenizer, WELL_FORMED[tag]) + [tokenizer.pad_token_id] * padding
    before = list(ids)
    with act():
        assert well_formed(subject(tokenizer, ids)) == 1
    assert ids == before


@pytest.mark.guards("special-tokens-stripped-from-reward")
@pytest.mark.parametrize("template", ["qwen2.5", "deepseek-r1-distill", "llama3"])
@given(
    pieces=st.lists(
        st.one_of(TEXT, st.sampled_from(["<think>", "</think>", "<|python_tag|>", "<|eot_id|>"])), max_size=6
    ),
    ended=st.booleans(),
    padding=st.integers(0, 3),
)
@settings(EXAMPLES, max_examples=60)
def test_text_keeps_all_that_was_sampled(tiny_qwen, subject, template, pieces, ended, padding):
    """All that was sampled, character for character, but for the end of the turn and the padding at its end."""
    tokenizer = tokenizer_of(tiny_qwen, template)
    text = "".join(pieces)
    while text.endswith((tokenizer.eos_token, tokenizer.pad_token)):
        text = text.removesuffix(tokenizer.eos_token).removesuffix(tokenizer.pad_token)
    ids = tokenizer.encode(text, add_special_tokens=False)
    ids += [tokenizer.eos_token_id] * ended + [tokenizer.pad_token_id] * padding
    with act():
        assert subject(tokenizer, ids) == text


@pytest.mark.guards("special-tokens-stripped-from-reward")
def test_spaces_stay(tiny_qwen, subject):
    """A tokenizer that cleans up what it decodes, as many of transformers 4 do."""
    tokenizer = tokenizer_of(tiny_qwen)
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True  # wanted by transformers 5
    text = "is n't 2 , 3 . 5 ?"
    with act():
        assert subject(tokenizer, sampled(tokenizer, text)) == text
