"""What travels between rollout and trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from verl.protocol import DataProto

__all__ = ["MaskedCompletion", "align_batches", "completion_mask"]


def align_batches(batches: Sequence[DataProto], from_memory_db: Sequence[bool]) -> list[DataProto]:
    """Make batches concatenable whose non-tensor keys differ.

    Args:
        batches: verl ``DataProto`` objects, in any order; left as they are.
        from_memory_db: For each batch, whether it was replayed from the memory database.

    Returns:
        New batches over the same tensors. Each has the union of the non-tensor keys as object arrays of shape
        ``[batch]``; rows that had no such key hold None. The bool column ``from_memory_db`` tells replayed rows.

    Raises:
        ValueError: ``batches`` and ``from_memory_db`` differ in length.
    """
    import numpy as np

    if len(batches) != len(from_memory_db):
        raise ValueError(f"{len(batches)} batches but {len(from_memory_db)} provenance flags")
    keys = list(dict.fromkeys(key for batch in batches for key in batch.non_tensor_batch))
    aligned = []
    for batch, replayed in zip(batches, from_memory_db, strict=True):
        rows = len(batch)
        columns = {key: batch.non_tensor_batch.get(key, np.full(rows, None, dtype=object)) for key in keys}
        columns["from_memory_db"] = np.full(rows, replayed, dtype=object)
        aligned.append(type(batch)(batch=batch.batch, non_tensor_batch=columns, meta_info=dict(batch.meta_info)))
    return aligned


@dataclass(frozen=True)
class MaskedCompletion:
    """One sample at the boundary to the trainer: token ids, and for each completion id 1 if it is trained on, else 0.

    Raises:
        ValueError: Ids and mask differ in length. Cutting to the shorter side would hide which tokens the mask is for.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    completion_mask: list[int]

    def __post_init__(self) -> None:
        """Refuse ids and mask of differing length."""
        if len(self.completion_ids) != len(self.completion_mask):
            raise ValueError(
                f"a completion of {len(self.completion_ids)} tokens has a mask of {len(self.completion_mask)}"
            )


def completion_mask(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[Mapping[str, str]],
    completion: Sequence[Mapping[str, str]],
    max_prompt_length: int,
    max_completion_length: int,
) -> MaskedCompletion:
    """Tokenise a conversation with its mask in one pass, whatever the chat template's headers look like.

    Trained on are the assistant turns of ``completion``, each with the token that ends it. Everything the template or
    the environment puts between them is not: tool outputs, user turns, headers, a ``<think>`` that opens the turn.

    Args:
        tokenizer: With a chat template whose assistant turns end in ``eos_token``.
        prompt: Messages (``role``, ``content``) up to the first sampled turn.
        completion: Messages from there on, first and last by the assistant. An assistant's ``content`` is its text as
            sampled, reasoning and tool calls included.
        max_prompt_length: In tokens; a longer prompt loses its beginning.
        max_completion_length: In tokens; a longer completion loses its end, ids and mask alike.

    Raises:
        ValueError: The completion does not begin and end with the assistant, has ``tool_calls`` apart from the text, or
            the template rewrites what it rendered earlier.
    """
    if not completion or any(completion[end]["role"] != "assistant" for end in (0, -1)):
        raise ValueError("a completion begins and ends with an assistant message")
    if any(message.get("tool_calls") for message in completion):
        raise ValueError("an assistant's tool calls belong into its content, as they were sampled")

    def render(messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        # As text: tokenize=True gives a list in transformers 4 and a BatchEncoding in transformers 5.
        return tokenizer.apply_chat_template(  # type: ignore[no-any-return]
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)  # type: ignore[no-any-return]

    prompt_ids = encode(render(prompt, True))
    tokens: list[tuple[int, int]] = []  # each id with its mask, so that no cut can part them
    ended = ""
    for turn, message in enumerate(completion):
        if message["role"] != "assistant":
            continue
        if turn:
            context = render([*prompt, *completion[:turn]], True)
            if not context.startswith(ended):
                raise ValueError("the chat template rewrites earlier turns: train on each turn as a sample of its own")
            tokens += [(token, 0) for token in encode(context[len(ended) :])]
        tokens += [(token, 1) for token in [*encode(message["content"]), tokenizer.eos_token_id]]
        rendered = render([*prompt, *completion[: turn + 1]], False)
        ended = rendered[: rendered.rindex(tokenizer.eos_token) + len(tokenizer.eos_token)]
    tokens = tokens[:max_completion_length]
    return MaskedCompletion(
        prompt_ids[max(0, len(prompt_ids) - max_prompt_length) :],
        [token for token, _ in tokens],
        [trained for _, trained in tokens],
    )
