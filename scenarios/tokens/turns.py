"""What the scenarios of this folder do with conversations: render them, and compute without other threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
    """The ids of a conversation as the chat template writes it."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    return tokenizer.encode(text, add_special_tokens=False)  # type: ignore[no-any-return]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: many times faster for a model of this size where cores are shared."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
