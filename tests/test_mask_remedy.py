from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_rlregress.fixtures.tiny_qwen import build
from pytest_rlregress.remedies import MaskedCompletion, completion_mask
from pytest_rlregress.scenarios.batch.masks import LAYOUTS, UNLIMITED, check_masked, conversation

SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "Lisbon"}}\n</tool_call>'
MESSAGES = conversation(
    "Be brief.", "How many?", "I look.\n</think>\n\n" + SEARCH, ["545 796", "人口"], "So many.", "Sure?", " Yes 🙂"
)
LIMITS = (12, 50)  # both cut something


@pytest.fixture(scope="module")
def tiny_qwen():
    return build()


@pytest.mark.parametrize("template", LAYOUTS)
def test_remedy_holds(tiny_qwen, template):
    tokenizer = tiny_qwen.tokenizer(template)
    masked = check_masked(completion_mask, tokenizer, template, *MESSAGES, *LIMITS)
    whole = check_masked(completion_mask, tokenizer, template, *MESSAGES)
    assert len(masked.prompt_ids) == 12 < len(whole.prompt_ids)
    assert len(masked.completion_ids) < len(whole.completion_ids)
    assert sum(masked.completion_mask) < sum(whole.completion_mask)


# Each twin makes something else of the remedy's whole ids and mask, and cuts them to the limit.


def one_longer(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], [*whole.completion_mask[:limit], 1]


def one_late(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], [0, *whole.completion_mask[:-1]][:limit]


def one_early(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], [*whole.completion_mask[1:], 1][:limit]


def mask_not_cut(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], whole.completion_mask


def mask_cut_from_the_left(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], whole.completion_mask[-limit:]


def llama_offsets(tokenizer, prompt, whole, limit):
    header = len(whole.prompt_ids) - len(tokenizer.encode(tokenizer.apply_chat_template(prompt, tokenize=False)))
    return whole.completion_ids[:limit], [0] * (4 - header) + whole.completion_mask[:limit]


def llama_offsets_cut_to_the_shorter_side(tokenizer, prompt, whole, limit):
    ids, mask = llama_offsets(tokenizer, prompt, whole, limit)
    return ids, mask[: len(ids)]


def generation_prompt_counted(tokenizer, prompt, whole, limit):
    """What the template writes right before a turn, ``<think>`` or the header's end, is trained on."""
    mask = whole.completion_mask
    return whole.completion_ids[:limit], [max(pair) for pair in zip(mask, [*mask[1:], 1], strict=True)][:limit]


def tool_outputs_counted(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], [1] * len(whole.completion_ids[:limit])


def end_of_turn_not_counted(tokenizer, prompt, whole, limit):
    ids = whole.completion_ids[:limit]
    pairs = zip(ids, whole.completion_mask[:limit], strict=True)
    return ids, [mask if token != tokenizer.eos_token_id else 0 for token, mask in pairs]


TWINS = [
    one_longer, one_late, one_early, mask_not_cut, mask_cut_from_the_left, llama_offsets,
    llama_offsets_cut_to_the_shorter_side, generation_prompt_counted, tool_outputs_counted, end_of_turn_not_counted,
]  # fmt: skip
RIGHT_ON_LLAMA = [llama_offsets, llama_offsets_cut_to_the_shorter_side]


@pytest.mark.parametrize("template", LAYOUTS)
@pytest.mark.parametrize("twin", TWINS)
def test_broken_twin_fails_the_guard(tiny_qwen, twin, template):
    def subject(tokenizer, prompt, completion, max_prompt_length, max_completion_length):
        whole = completion_mask(tokenizer, prompt, completion, UNLIMITED, UNLIMITED)
        ids, mask = twin(tokenizer, prompt, whole, max_completion_length)
        prompt_ids = whole.prompt_ids[-max_prompt_length:]
        return SimpleNamespace(prompt_ids=prompt_ids, completion_ids=ids, completion_mask=mask)

    tokenizer = tiny_qwen.tokenizer(template)
    if template == "llama3" and twin in RIGHT_ON_LLAMA:
        check_masked(subject, tokenizer, template, *MESSAGES, *LIMITS)
    else:
        with pytest.raises(
            AssertionError, match=r"has a mask of|exactly what the policy wrote|not cut where the ids are"
        ):
            check_masked(subject, tokenizer, template, *MESSAGES, *LIMITS)


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
        completion_mask(tiny_qwen.tokenizer(), MESSAGES[0], completion, 8, 8)


def test_remedy_refuses_a_template_that_rewrites_earlier_turns(tiny_qwen):
    tokenizer = tiny_qwen.tokenizer()
    only_last = "{{- messages[-1].content + eos_token if loop.last or message.role != 'assistant' else '' -}}"
    tokenizer.chat_template = "{%- for message in messages -%}" + only_last + "{%- endfor -%}"
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        completion_mask(tokenizer, *conversation("a", "b", "c", "d", "e"), 8, 8)
