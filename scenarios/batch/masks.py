"""Conversations in the three families' layouts, what must hold of their masks, and the loss that multiplies them."""
# ruff: noqa: RUF001 - DeepSeek's control tokens are spelt with fullwidth bars

import unicodedata
from collections.abc import Callable
from itertools import groupby
from typing import Any

from hypothesis import strategies as st

from pytest_rlregress.stack.lazy import torch

# The layouts as the families document them, written out here so that the check leans on no chat template.
LAYOUTS = {
    "qwen2.5": {
        "prompt": "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n",
        "end": "<|im_end|>",
        "user": "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
        "tool": "<tool_response>\n{}\n</tool_response>",
        "next tool": "\n",
        "tools": "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    },
    "deepseek-r1-distill": {
        "prompt": "<｜begin▁of▁sentence｜>{system}<｜User｜>{user}<｜Assistant｜><think>\n",
        "end": "<｜end▁of▁sentence｜>",
        "user": "<｜User｜>{}<｜Assistant｜><think>\n",
        "tool": "<｜tool▁output▁begin｜>{}<｜tool▁output▁end｜>",
        "next tool": "\n",
        "tools": "<｜tool▁outputs▁begin｜>{}<｜tool▁outputs▁end｜>",
    },
    "llama3": {
        "prompt": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n{user}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "end": "<|eot_id|>",
        "user": "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "tool": "<|start_header_id|>ipython<|end_header_id|>\n\n{}<|eot_id|>",
        "next tool": "",
        "tools": "{}<|start_header_id|>assistant<|end_header_id|>\n\n",
    },
}
UNLIMITED = 1 << 20


def conversation(system: str, user: str, *turns: str | list[str]) -> tuple[list[Any], list[Any]]:
    """Return prompt and completion messages. Of the turns, every other one is the assistant's text, from the first on;
    those between are the user's text (str) or tool outputs (list).
    """
    completion: list[dict[str, str]] = []
    for number, turn in enumerate(turns):
        role = "assistant" if number % 2 == 0 else "user" if isinstance(turn, str) else "tool"
        completion += [{"role": role, "content": text} for text in ([turn] if isinstance(turn, str) else turn)]
    return [{"role": "system", "content": system}, {"role": "user", "content": user}], completion


def documented(template: str, prompt: list[Any], completion: list[Any]) -> tuple[str, list[tuple[str, bool]]]:
    """Return the prompt's text and the completion's as pieces (text, whether the policy wrote it)."""
    layout = LAYOUTS[template]

    def text(message: dict[str, str]) -> str:
        return message["content"].strip() if template == "llama3" else message["content"]  # Llama's template trims

    pieces = []
    for role, group in groupby(completion, key=lambda message: message["role"]):
        messages = list(group)
        if role == "assistant":
            pieces.append((messages[0]["content"] + layout["end"], True))
        elif role == "user":
            pieces.append((layout["user"].format(text(messages[0])), False))
        else:
            outputs = layout["next tool"].join(layout["tool"].format(text(message)) for message in messages)
            pieces.append((layout["tools"].format(outputs), False))
    return layout["prompt"].format(system=text(prompt[0]), user=text(prompt[1])), pieces


def check_masked(
    subject: Callable[..., Any],
    tokenizer: Any,
    template: str,
    prompt: list[Any],
    completion: list[Any],
    max_prompt_length: int = UNLIMITED,
    max_completion_length: int = UNLIMITED,
) -> Any:
    """Check that ``subject`` trains on just what the policy wrote, and cuts ids and mask alike; return its result."""
    masked = subject(tokenizer, prompt, completion, max_prompt_length, max_completion_length)
    ids, mask = masked.completion_ids, masked.completion_mask
    assert len(ids) == len(mask), f"a completion of {len(ids)} tokens has a mask of {len(mask)}"

    whole = subject(tokenizer, prompt, completion, UNLIMITED, UNLIMITED)
    prompt_text, pieces = documented(template, prompt, completion)
    assert tokenizer.decode(whole.prompt_ids) == prompt_text
    runs = groupby(zip(whole.completion_ids, whole.completion_mask, strict=True), key=lambda pair: pair[1])
    decoded = [(tokenizer.decode([token for token, _ in run]), trained) for trained, run in runs]
    assert decoded == pieces, "the mask does not cover exactly what the policy wrote"

    assert masked.prompt_ids == whole.prompt_ids[-max_prompt_length:], "the prompt is not cut from the left"
    assert ids == whole.completion_ids[:max_completion_length], "the ids are not the first of the completion"
    assert mask == whole.completion_mask[:max_completion_length], "the mask is not cut where the ids are"
    return masked


SNIPPETS = [
    "", "\n", "\n\n  x ", "</think>", "First, 2 + 2.\n</think>\n\nThe answer is 4.", "你好,世界。", "👩‍🔬 🇩🇪",
    '<tool_call>\n{"name": "search", "arguments": {"query": "Lisbon"}}\n</tool_call>',
    "assistant\n\n", "```py\nx = 1\n```",
]  # fmt: skip
# Unassigned characters stay out: Python and the tokenizer may know different versions of Unicode's NFC.
TEXT = st.one_of(
    st.sampled_from(SNIPPETS),
    st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=12).map(lambda s: unicodedata.normalize("NFC", s)),
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Conversations of one to four assistant turns with user or tool turns between them."""
    turns: list[str | list[str]] = [draw(TEXT)]
    for _ in range(draw(st.integers(0, 3))):
        turns += [draw(st.one_of(TEXT, st.lists(TEXT, min_size=1, max_size=3))), draw(TEXT)]
    return conversation(draw(TEXT), draw(TEXT), *turns)


def per_token_loss(model: Any, prompt_ids: list[int], completion_ids: list[int]) -> Any:
    """Return the completion's negative log-probabilities under ``model``: float32 ``[1, completion]``, in nats."""
    ids = torch.tensor([prompt_ids + completion_ids])
    logits = model(ids).logits[:, len(prompt_ids) - 1 : -1].float()
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, len(prompt_ids) :], reduction="none")


def masked_mean(per_token_loss: Any, mask: Any) -> Any:
    """Return the mean over the tokens the mask is one for: the line that GRPO's losses end with."""
    return (per_token_loss * mask).sum() / mask.sum()


def loss_function(compiled: bool) -> Callable[[Any, Any], Any]:
    """Return ``masked_mean``, plain or under ``torch.compile`` with dynamic shapes.

    The shapes meet in Dynamo's fake tensors, before any backend: "eager" gives what inductor gives and needs no
    compiler.
    """
    return torch.compile(masked_mean, dynamic=True, backend="eager") if compiled else masked_mean


def search(query: str) -> str:
    """Look something up.

    Args:
        query: What to look up.
    """
    return "545796"
