"""What a mask cannot be made of is refused, and a tokenizer's own additions stay out of it."""

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.batch.masks import UNLIMITED, conversation

TALK = conversation("Be brief.", "1 + 1?", "2", "Sure?", "Yes.")
ANSWER, TOOL = {"role": "assistant", "content": "2"}, {"role": "tool", "content": "21"}
ENDS = "begins and ends with an assistant"


@pytest.mark.guards("mask-length-drift")
@pytest.mark.parametrize(
    ("completion", "message"),
    [
        ([], ENDS),
        ([TOOL], ENDS),
        ([TOOL, ANSWER], ENDS),
        ([ANSWER, TOOL], ENDS),
        ([ANSWER, TOOL, {**ANSWER, "tool_calls": [{}]}], "tool calls belong into its content"),
    ],
    ids=["nothing", "tool alone", "tool first", "tool last", "calls apart"],
)
def test_rejects_a_completion_without_its_assistant(tiny_qwen, subject, completion, message):
    with act(), pytest.raises(ValueError, match=message):
        subject(tiny_qwen.tokenizer(), TALK[0], completion, 8, 8)


@pytest.mark.guards("mask-length-drift")
def test_rejects_a_template_that_rewrites_earlier_turns(tiny_qwen, subject):
    tokenizer = tiny_qwen.tokenizer()
    only_last = "{{- messages[-1].content + eos_token if loop.last or message.role != 'assistant' else '' -}}"
    tokenizer.chat_template = "{%- for message in messages -%}" + only_last + "{%- endfor -%}"
    with act(), pytest.raises(ValueError, match="rewrites earlier turns"):
        subject(tokenizer, *TALK, UNLIMITED, UNLIMITED)


@pytest.mark.guards("mask-length-drift")
def test_end_of_turn_in_a_header_is_not_trained_on(tiny_qwen, subject):
    """A template that writes the end of a turn before each of the assistant's headers, too."""
    tokenizer = tiny_qwen.tokenizer()
    end = tokenizer.eos_token
    turns = "{%- for one in messages -%}{{ one.content + eos_token }}{%- endfor -%}"
    tokenizer.chat_template = turns + "{{ eos_token + ':' if add_generation_prompt else '' }}"
    with act():
        masked = subject(tokenizer, *TALK, UNLIMITED, UNLIMITED)
    assert tokenizer.decode(masked.prompt_ids) == f"Be brief.{end}1 + 1?{end}{end}:"
    assert tokenizer.decode(masked.completion_ids) == f"2{end}Sure?{end}{end}:Yes.{end}"
    trained = [token for token, one in zip(masked.completion_ids, masked.completion_mask, strict=True) if one]
    assert tokenizer.decode(trained) == f"2{end}Yes.{end}"


@pytest.mark.guards("mask-length-drift")
def test_no_second_bos_from_the_tokenizer(tiny_qwen, subject):
    """As Llama 3's does to whatever it encodes: the template has written it already, and turns have none."""
    from tokenizers.processors import TemplateProcessing

    with act():
        wanted = subject(tiny_qwen.tokenizer("llama3"), *TALK, UNLIMITED, UNLIMITED)
    tokenizer = tiny_qwen.tokenizer("llama3")
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{bos[0]} $A", special_tokens=[bos])
    assert tokenizer.encode("2")[0] == bos[1]
    masked = subject(tokenizer, *TALK, UNLIMITED, UNLIMITED)
    assert (masked.prompt_ids, masked.completion_ids) == (wanted.prompt_ids, wanted.completion_ids)
    assert masked.completion_mask == wanted.completion_mask
