"""What the scenarios of this folder do with conversations: render them, and compute without other threads."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_rlregress.stack.lazy import torch


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
    """The ids of a conversation as the chat template writes it."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    return tokenizer.encode(text, add_special_tokens=False)  # type: ignore[no-any-return]


def whole(turn: tuple[Sequence[int], Sequence[int]]) -> list[int]:
    """A turn's prompt and what was sampled, in one."""
    return [*turn[0], *turn[1]]


def behind(turn: tuple[Sequence[int], Sequence[int]], mask: Sequence[int] | None = None) -> list[tuple[list[int], int]]:
    """Each sampled token, or each that the mask is 1 for, with the tokens before it."""
    prompt, ids = turn
    positions = [len(prompt) + index for index in range(len(ids)) if mask is None or mask[index]]
    return [(whole(turn)[:position], whole(turn)[position]) for position in positions]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: many times faster for a model of this size where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
