# ruff: noqa: RUF001 - DeepSeek's control tokens are spelt with fullwidth bars

import json

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.stack import InterfaceMissing, versions

QUESTION = {"role": "user", "content": "How big is Lisbon?"}
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOL = {"type": "function", "function": {"name": "search", "description": "Look up", "parameters": PARAMETERS}}
# A call as each family's chat template writes it, and the parser that vLLM has for it.
CALLS = {
    "qwen2.5": '<tool_call>\n{"name": "search", "arguments": {"query": "Lisbon"}}\n</tool_call>',
    "llama3": '{"name": "search", "parameters": {"query": "Lisbon"}}',
    "deepseek-r1-distill": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n"
    '```json\n{"query": "Lisbon"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}
PARSERS = {"qwen2.5": "hermes", "llama3": "llama3_json", "deepseek-r1-distill": "deepseek_v3"}
ALSO = {"llama3": ["llama4_json"]}  # the same format by another name
NOT = {
    "qwen2.5": {"deepseek_v3"},  # the JSON in a call of Qwen's is one of Llama's
    "llama3": {"hermes", "deepseek_v3"},
    "deepseek-r1-distill": {"hermes", "llama3_json"},
}
OTHERS = ["llama3", "deepseek-r1-distill"]


def tokenizer_of(tiny_qwen, family):
    """The tiny tokenizer, in which the marks of tool calls are ordinary tokens, as they are in the families' own."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from pytest_rlregress.fixtures.tiny_qwen import MARKUP_TOKENS, NAMED_TOKENS

    tokenizer = tiny_qwen.tokenizer(family)
    data = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in data["added_tokens"]:
        token["special"] &= token["content"] not in MARKUP_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(data)),
        chat_template=tokenizer.chat_template,
        **NAMED_TOKENS[family],
    )


def answer(server, call):
    """The server's answer where the model writes ``call``: what the tiny model would not, the grammar makes it."""
    request = {"model": server.model, "messages": [QUESTION], "max_tokens": 200}
    request["structured_outputs"] = {"choice": [call]}
    status, body = server.post("/v1/chat/completions", {**request, "skip_special_tokens": False})
    choices = body.get("choices")  # vLLM 0.15 answers 200 with an error in it
    if status != 200 or not choices or choices[0]["message"]["content"] != call:
        raise InterfaceMissing(f"lets a grammar write {call!r}, which vllm {versions().get('vllm')} does not")
    status, body = server.post("/v1/chat/completions", {**request, "tools": [TOOL]})
    assert status == 200, body
    return body["choices"][0]


@pytest.mark.reproduces("tool-call-parser-mismatch")
def test_server_with_hermes(vllm_server):
    """A call of Llama's: vLLM 0.13's engine dies of a grammar with the marks of R1-distill."""
    with act():
        choice = answer(vllm_server, CALLS["llama3"])
    calls, content = choice["message"].get("tool_calls") or [], choice["message"]["content"]
    if not (calls or content != CALLS["llama3"]):
        assert choice["finish_reason"] == "stop"
        silent(f"0 calls, finish_reason {choice['finish_reason']!r}: the call is in the content, {content!r}")
    assert calls, f"neither a call nor its text: {choice}"


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("tool-call-parser-mismatch")
@pytest.mark.parametrize("family", OTHERS)
def test_agent_loop_with_hermes(tiny_qwen, family):
    from pytest_rlregress.scenarios.tokens.agent_loop import prepare_agent_loop

    tokenizer = tiny_qwen.tokenizer(family)
    converse = prepare_agent_loop(tokenizer, "qwen2", [QUESTION], [CALLS[family], "Half a million."])
    with act():
        output = converse()
    turns = output.num_turns // 2  # question and answer each
    if turns != 2:
        assert turns == 1
        silent(f"verl's agent loop ended after {turns} of 2 turns, its parser found 0 calls")


@pytest.mark.guards("tool-call-parser-mismatch")
@pytest.mark.needs("vllm")
@pytest.mark.parametrize("family", CALLS)
def test_only_the_named_ones_match(tiny_qwen, subject, family):
    """Of all parsers that vLLM has, those are let through that a refusal names."""
    try:
        from vllm.tool_parsers import ToolParserManager
    except ModuleNotFoundError:  # up to vLLM 0.13
        from vllm.entrypoints.openai.tool_parsers import ToolParserManager

    tokenizer = tokenizer_of(tiny_qwen, family)
    refused = {}
    with act():
        for name in ToolParserManager.list_registered():
            try:
                assert subject(tokenizer, name) == name
            except ValueError as error:
                refused[name] = str(error)
    matching = [name for name in ToolParserManager.list_registered() if name not in refused]
    assert {PARSERS[family], *ALSO.get(family, [])} <= set(matching)
    assert NOT[family] <= refused.keys()
    for name, message in refused.items():
        assert name in message
        assert message.endswith(f"those that do: {', '.join(matching)}")


@pytest.mark.guards("tool-call-parser-mismatch")
def test_server_finds_what_matches(vllm_server, tiny_qwen, subject):
    with act():
        assert subject(tokenizer_of(tiny_qwen, "qwen2.5"), "hermes") == "hermes"
    choice = answer(vllm_server, CALLS["qwen2.5"])
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("search", {"query": "Lisbon"})


TEMPLATE = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"


@pytest.mark.guards("tool-call-parser-mismatch")
@pytest.mark.needs("vllm")
@pytest.mark.parametrize(
    ("written", "name", "message"),
    [
        ("{{ c.function.name }}", "hermes", "renders no tool call"),
        ("", "hermes", "renders no tool call"),
        ("calls {{ c.function.name }} {{ c.function.arguments | tojson }}", "hermes", "none of vLLM"),
        ("", "hermess", "no tool-call parser 'hermess'; it has .*hermes, "),
    ],
    ids=["no arguments", "no call", "no parser's format", "no such parser"],
)
def test_rejects_templates_and_names_that_no_parser_fits(tiny_qwen, subject, written, name, message):
    tokenizer = tokenizer_of(tiny_qwen, "qwen2.5")
    tokenizer.chat_template = TEMPLATE.replace("CALL", written)
    with act(), pytest.raises(ValueError, match=message):
        subject(tokenizer, name)
