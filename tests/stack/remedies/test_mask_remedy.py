from __future__ import annotations

import pytest

from pytest_rlregress.fixtures.tiny_qwen import build
from pytest_rlregress.remedies import completion_mask
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
