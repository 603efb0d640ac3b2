"""A tool-call parser is refused without the tracebacks that parsers log for text that is not theirs."""

import logging

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.rollout.tool_call_parser_mismatch.test_tool_call_parser_mismatch import (
    PARSERS,
    tokenizer_of,
)

pytestmark = pytest.mark.needs("vllm")


@pytest.mark.guards("tool-call-parser-mismatch")
@pytest.mark.parametrize("family", ["llama3", "deepseek-r1-distill"])
def test_refusal_is_all_that_is_said(tiny_qwen, subject, family):
    """It shows the call without the end of its turn, and vLLM logs as before."""
    tokenizer, log, records = tokenizer_of(tiny_qwen, family), logging.getLogger("vllm"), []
    handler = logging.Handler()
    handler.emit = records.append
    log.addHandler(handler)
    level = log.level
    with act():
        try:
            with pytest.raises(ValueError, match="hermes finds no call in what") as refused:
                subject(tokenizer, "hermes")
        finally:
            log.removeHandler(handler)
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []
    assert log.level == level
    shown, _, others = str(refused.value).partition("those that do: ")
    assert PARSERS[family] in others
    assert "hermes" not in others
    assert tokenizer.eos_token not in shown
    assert "assistant" not in shown, "shows the turn's header, too"
    assert "How many people" not in shown, "shows the prompt, too"


WANTS = """{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}
{% if tools and m.content == '' and c.id | length == 9 and c.type == 'function' %}<tool_call>
{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
</tool_call>{% endif %}{% endfor %}{% endfor %}"""


@pytest.mark.guards("tool-call-parser-mismatch")
def test_template_that_looks_at_all_of_a_call(tiny_qwen, subject):
    """As Mistral's does at its id."""
    tokenizer = tokenizer_of(tiny_qwen, "qwen2.5")
    tokenizer.chat_template = WANTS
    with act():
        assert subject(tokenizer, "hermes") == "hermes"
