from __future__ import annotations

import pytest

from pytest_rlregress.fixtures.tiny_qwen import build
from pytest_rlregress.remedies import MaskedCompletion, completion_mask
from pytest_rlregress.scenarios.batch.masks import UNLIMITED, conversation

SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "Lisbon"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tiny_qwen():
    return build()


@pytest.mark.parametrize("template", ["qwen2.5", "llama3"])  # R1-distill's generation prompt is not in its transcripts
def test_remedy_agrees_with_transformers_own_mask(tiny_qwen, template):
    tokenizer = tiny_qwen.tokenizer(template)
    prompt, completion = conversation(
        "Be brief.", "How many?", SEARCH, ["545 796", "人口"], "So many.", "Sure?", "Yes 🙂"
    )
    masked = completion_mask(tokenizer, prompt, completion, UNLIMITED, UNLIMITED)
    theirs = tokenizer.apply_chat_template(prompt + completion, return_dict=True, return_assistant_tokens_mask=True)
    ids = masked.prompt_ids + masked.completion_ids
    mask = [0] * len(masked.prompt_ids) + masked.completion_mask
    assert theirs["input_ids"][: len(ids)] == ids
    assert theirs["assistant_masks"][: len(ids)] == mask


def test_boundary_refuses_differing_lengths():
    with pytest.raises(ValueError, match="a completion of 2 tokens has a mask of 3"):
        MaskedCompletion([1], [2, 3], [1, 1, 1])


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        ([], "begins and ends with an assistant"),
        ([{"role": "tool", "content": "21"}], "begins and ends with an assistant"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "tool calls belong into its content"),
    ],
)
def test_remedy_refuses_what_it_cannot_mask(tiny_qwen, completion, message):
    with pytest.raises(ValueError, match=message):
        completion_mask(tiny_qwen.tokenizer(), [], completion, 8, 8)


def test_remedy_refuses_a_template_that_rewrites_earlier_turns(tiny_qwen):
    tokenizer = tiny_qwen.tokenizer()
    only_last = "{{- messages[-1].content + eos_token if loop.last or message.role != 'assistant' else '' -}}"
    tokenizer.chat_template = "{%- for message in messages -%}" + only_last + "{%- endfor -%}"
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        completion_mask(tokenizer, *conversation("a", "b", "c", "d", "e"), 8, 8)
