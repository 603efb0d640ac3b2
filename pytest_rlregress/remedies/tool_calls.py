"""Remedies for tool calls: what an engine's server finds in a completion."""

from __future__ import annotations

import inspect
import json
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["matching_tool_parser"]

_TOOL = {
    "type": "function",
    "function": {
        "name": "population",
        "description": "Number of people in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_QUESTION = {"role": "user", "content": "How many people live in Lisbon?"}
_ARGUMENTS = {"city": "Lisbon"}


def matching_tool_parser(tokenizer: PreTrainedTokenizerBase, name: str) -> str:
    """Check vLLM's tool-call parser of that name against the model's chat template, before a server is started with it.

    The template renders a call; the parser must find it in what the model would have written: one call, with its name
    and its arguments. With another one the server answers as if the model called no tool, and says nothing.

    Args:
        tokenizer: Of the model, with the chat template that the server will use.
        name: As in ``--tool-call-parser``.

    Returns:
        The name, for the server's command line.

    Raises:
        ValueError: vLLM has no such parser, or it does not find the call: the message names those that do. Or the
            template renders no call: it says nothing about the parser.
    """
    manager, request = _tool_parsing()
    known = manager.list_registered()
    if name not in known:
        raise ValueError(f"vLLM has no tool-call parser {name!r}; it has {', '.join(known)}")
    written = _written_call(tokenizer)
    log = logging.getLogger("vllm")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)  # parsers log a traceback for each text that is not theirs
    try:
        found = _finds_call(manager, name, tokenizer, written, request)
        right = [other for other in known if not found and _finds_call(manager, other, tokenizer, written, request)]
    finally:
        log.setLevel(level)
    if not found:
        raise ValueError(
            f"the tool-call parser {name} finds no call in what the model's chat template writes, "
            f"{tokenizer.decode(written)!r}; those that do: {', '.join(right) or 'none of vLLM'}"
        )
    return name


def _tool_parsing() -> tuple[Any, Any]:
    """vLLM's registry of parsers, and a request with a tool."""
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager
    except ImportError:  # up to vLLM 0.13
        from vllm.entrypoints.openai.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.tool_parsers import ToolParserManager
    return ToolParserManager, lambda: ChatCompletionRequest(model="", messages=[_QUESTION], tools=[_TOOL])


def _written_call(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of a call as the model would sample them: behind the generation prompt, up to the end of the turn."""
    call = {"id": "call00001", "type": "function", "function": {"name": "population", "arguments": _ARGUMENTS}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}

    def encoded(messages: list[dict[str, Any]], add_generation_prompt: bool) -> list[int]:
        text = tokenizer.apply_chat_template(
            messages, tools=[_TOOL], tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return tokenizer.encode(text, add_special_tokens=False)  # type: ignore[no-any-return]

    prompt, whole = encoded([_QUESTION], True), encoded([_QUESTION, turn], False)
    common = next((at for at, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]), len(prompt))
    written = whole[common:]
    if tokenizer.eos_token_id in written:
        written = written[: written.index(tokenizer.eos_token_id)]
    text = tokenizer.decode(written)
    if "population" not in text or "Lisbon" not in text:
        raise ValueError("the chat template renders no tool call: it does not tell how the model writes one")
    return written


def _finds_call(manager: Any, name: str, tokenizer: Any, written: list[int], request: Any) -> bool:
    """Return whether the parser makes of the text just the one call that was rendered."""
    try:
        asked = request()
        parser_class = manager.get_tool_parser(name)
        takes_tools = len(inspect.signature(parser_class).parameters) > 1
        parser = parser_class(tokenizer, asked.tools) if takes_tools else parser_class(tokenizer)
        asked = parser.adjust_request(asked)
        text = tokenizer.decode(written, skip_special_tokens=asked.skip_special_tokens)
        found = parser.extract_tool_calls(text, asked).tool_calls
        return [(one.function.name, json.loads(one.function.arguments)) for one in found] == [
            ("population", _ARGUMENTS)
        ]
    except Exception:  # a parser that wants another tokenizer or another text may raise whatever it likes
        return False
