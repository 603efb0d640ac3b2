"""Remedies for the engine that generates: lengths, ids, its log, its weights."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlregress.logs.engine import EngineLog
from pytest_rlregress.remedies.weight_sync import forget_cached_prefixes
from pytest_rlregress.stack import InterfaceMissing

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase
    from vllm import LLM

__all__ = [
    "clamp_max_tokens",
    "contiguous_ids",
    "matching_tool_parser",
    "reload_weights",
    "watch_engine_log",
    "worker_start_method",
]


def clamp_max_tokens(max_tokens: int, prompt_length: int, max_model_len: int) -> int:
    """The most tokens of ``max_tokens`` that fit behind a prompt: ``prompt_length + result <= max_model_len``.

    All three in tokens; the prompt's as the engine counts them, chat template included. Clamp each request: vLLM's
    server refuses one that does not fit, and its offline ``LLM.generate`` silently stops short.

    Raises:
        ValueError: The prompt leaves no room for a single token, or none is asked for.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}: at least 1 is needed")
    left = max_model_len - prompt_length
    if left < 1:
        raise ValueError(
            f"no room to generate: the prompt has {prompt_length} tokens and max_model_len, which holds prompt and "
            f"completion, is {max_model_len}. Shorten the prompt or raise max_model_len."
        )
    return min(max_tokens, left)


def contiguous_ids(ids: torch.Tensor) -> torch.Tensor:
    """Token ids as an embedding wants them: int64 and contiguous, whatever view of a padded batch they were.

    Args:
        ids: Integers of any shape, such as a column slice or a transposed view of ``[batch, tokens]``.

    Returns:
        The same ids in the same shape.

    Raises:
        ValueError: ``ids`` are no integers. Casting would make other ids of them: bfloat16 is exact only up to 256.
    """
    if ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"token ids are {ids.dtype}, which does not hold every id: keep them int64 throughout")
    return ids.long().contiguous()


def watch_engine_log(log: Path, patience: float) -> Callable[[], None]:
    """Learn from an inference server's own log that it failed, where the trainer only sees that nothing comes.

    What the server logs from now on counts: vLLM's, or another's that uvicorn runs with its access log on. A request
    completed after an error takes the error back, so that one bad prompt does not end a run that goes on.

    Args:
        log: File the server writes to. It need not exist yet, and may be of any size, truncated or replaced.
        patience: Seconds without a completed request after an error; choose more than the longest rollout takes.

    Returns:
        The check to call in the orchestrator's loop: it raises RuntimeError with the engine's words.
    """
    engine = EngineLog(log)

    def check() -> None:
        failure = engine.failure(patience)
        if failure:
            raise RuntimeError(f"no request was completed since the engine logged an error in {log}:\n{failure}")

    return check


def reload_weights(llm: LLM, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Give a running engine new weights and forget what it cached under the old ones.

    By vLLM's own ``reload_weights``, not the model's ``load_weights``, which is for the first load only. What vLLM 0.31
    leaves old or garbles without a word arrives too: a tied head that is not sent, gpt-oss' experts in one tensor a
    layer and its attention sinks, and on a CPU every mixture of experts.

    Args:
        llm: An engine in this process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``).
        weights: Every tensor of the checkpoint by the name ``save_pretrained`` gives it, any float dtype and device.

    Raises:
        InterfaceMissing: This vLLM takes no new weights, or no gpt-oss': the engine still has its old ones.
    """
    import vllm
    from vllm.platforms import current_platform

    config = llm.model_config.hf_config
    tied, gpt_oss = config.get_text_config().tie_word_embeddings, config.model_type == "gpt_oss"
    if gpt_oss:
        from vllm.model_executor.models import gpt_oss as module

        if not hasattr(module, "GptOssRoutedExperts"):
            raise InterfaceMissing(
                f"drives {module.__name__}.GptOssRoutedExperts, which vllm {vllm.__version__} has not: it loads no "
                "single expert, and would keep the old experts of a gpt-oss without a word. Use vLLM 0.31 or later, or "
                "start a new engine from a checkpoint with the new weights"
            )
    sinks = []

    def sent() -> Iterator[tuple[str, torch.Tensor]]:
        embedding = None
        for name, tensor in weights:
            layer, experts, rest = name.partition(".mlp.experts.")
            if gpt_oss and experts:
                # The whole stack is copied onto a placeholder on the meta device, and lost; a single one is not.
                yield from ((f"{layer}{experts}{number}.{rest}", one) for number, one in enumerate(tensor))
                continue
            if name.endswith(".sinks"):
                sinks.append((name, tensor))
            elif name.endswith("embed_tokens.weight"):
                embedding = tensor
            elif name == "lm_head.weight":
                embedding = None
            yield name, tensor
        if tied and embedding is not None:
            yield "lm_head.weight", embedding

    if current_platform.is_cpu():
        llm.apply_model(_forget_expert_kernels)
    reload_by_worker(llm, sent())
    if sinks:  # are copied onto a placeholder too; nothing processes them, so that a plain load does for them
        llm.apply_model(lambda model: model.load_weights(iter(sinks)))
    forget_cached_prefixes(llm)


def reload_by_worker(llm: LLM, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Give a running engine new weights by the ``reload_weights`` of vLLM's worker, and nothing more.

    Raises:
        InterfaceMissing: It takes none: vLLM 0.13's reads them from the checkpoint's folder only.
    """
    import vllm

    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
    except TypeError as error:
        if "weights_iterator" not in str(error):
            raise
        raise InterfaceMissing(
            f"drives reload_weights(weights_iterator=…) of the worker, which vllm {vllm.__version__} has not"
        ) from error


def _forget_expert_kernels(model: torch.nn.Module) -> None:
    """Let vLLM lay out the experts as at the first load: it does so only where there is no kernel yet."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def worker_start_method() -> str:
    """How vLLM's processes must be started from this one: "spawn" if a fork would inherit CUDA, else "fork".

    Set ``VLLM_WORKER_MULTIPROC_METHOD`` to it before the engine starts. vLLM looks itself, but not whether this process
    was forked from one that used CUDA: then ``torch.cuda.is_initialized()`` is False, and CUDA unusable all the same.
    """
    torch = sys.modules.get("torch")  # without it, nothing of torch can have used CUDA
    if torch is None:
        return "fork"
    return "spawn" if torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork() else "fork"


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
        ``name``.

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
    """Whether the parser makes of the text just the one call that was rendered."""
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
