"""Broken remedies of tool-call-parser-mismatch, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.tool_calls import matching_tool_parser


@broken(only="test_only_the_named")
def never_compared(tokenizer, name):
    return name


@broken(only="test_refused")
def words_alone(tokenizer, name):
    try:
        return matching_tool_parser(tokenizer, name)
    except ValueError:
        raise ValueError(f"the tool-call parser {name} finds no call") from None


@mutant("absent", only="test_agent_loop_with_hermes")
def verl_takes_bare_json(monkeypatch):
    from verl.experimental.agent_loop.tool_parser import FunctionCall, HermesToolParser

    async def extract(self, ids, tools=None):
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return "", [FunctionCall(name="search", arguments="{}")] * text.startswith("{")

    monkeypatch.setattr(HermesToolParser, "extract_tool_calls", extract)


@mutant("changed", only="test_agent_loop_with_hermes")
def verl_parser_raises(monkeypatch):
    from verl.experimental.agent_loop.tool_parser import HermesToolParser

    monkeypatch.setattr(HermesToolParser, "extract_tool_calls", failing(ValueError("this isn't a call")))
