"""Since transformers 5 apply_chat_template(tokenize=True) returns a BatchEncoding: len() of it is 2, silently."""

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.batch.masks import LAYOUTS, conversation

MESSAGES = conversation("You are a helpful assistant.", "What is 48 divided by 6, plus 10?", "It is 18.")


@pytest.mark.reproduces("mask-length-drift")
@pytest.mark.parametrize("template", LAYOUTS)
def test_len_of_the_encoding(tiny_qwen, template):
    tokenizer = tiny_qwen.tokenizer(template)
    prompt, [answer] = MESSAGES
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    prompt_ids = tokenizer.encode(text, add_special_tokens=False)
    completion_ids = [*tokenizer.encode(answer["content"]), tokenizer.eos_token_id]

    with act():
        prompt_length = len(tokenizer.apply_chat_template(prompt, tokenize=True, add_generation_prompt=True))
    mask = [int(position >= prompt_length) for position in range(len(prompt_ids + completion_ids))]

    if sum(mask) != len(completion_ids):
        silent(
            f"the mask trains on {sum(mask)} tokens of a completion of {len(completion_ids)}, "
            f"for len() of the encoded prompt is {prompt_length}, not {len(prompt_ids)}"
        )
