"""A tool-call parser is refused without the tracebacks that parsers log for text that is not theirs."""

from __future__ import annotations

import logging

import pytest

from pytest_rlregress.scenarios.rollout.test_tool_call_parser_mismatch import PARSERS, tokenizer_of


@pytest.mark.guards("tool-call-parser-mismatch")
@pytest.mark.parametrize("family", ["llama3", "deepseek-r1-distill"])
def test_refusal_is_all_that_is_said(tiny_qwen, subject, family):
    """It shows the call without the end of its turn, and vLLM logs as before."""
    tokenizer, log, records = tokenizer_of(tiny_qwen, family), logging.getLogger("vllm"), []
    handler = logging.Handler()
    handler.emit = records.append
    log.addHandler(handler)
    level = log.level
    try:
        with pytest.raises(ValueError, match="hermes finds no call in what") as refused:
            subject(tokenizer, "hermes")
    finally:
        log.removeHandler(handler)
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []
    assert log.level == level
    assert tokenizer.eos_token not in str(refused.value)
    assert "How many people" not in str(refused.value), "shows the prompt, too"


@pytest.mark.guards("tool-call-parser-mismatch")
@pytest.mark.parametrize("family", PARSERS)
def test_right_one_is_returned(tiny_qwen, subject, family):
    assert subject(tokenizer_of(tiny_qwen, family), PARSERS[family]) == PARSERS[family]
