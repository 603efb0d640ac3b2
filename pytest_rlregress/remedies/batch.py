"""Remedies for batches: rows of unequal length, columns of objects, masks, chat templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerBase
    from verl.protocol import DataProto

__all__ = [
    "MaskedCompletion",
    "align_batches",
    "completion_mask",
    "info_mask",
    "object_column",
    "union_batches",
]

_INFORMATION = re.compile("<(/?)information>")
_INVALID_ACTION = "My previous action is invalid"
# How a token spells a space or a line break: byte-level BPE (Qwen, Llama 3), SentencePiece (Llama 2).
_SPELT = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})


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
        columns = {key: object_column(batch.non_tensor_batch.get(key, [None] * rows)) for key in keys}
        columns["from_memory_db"] = np.full(rows, replayed, dtype=object)
        aligned.append(type(batch)(batch=batch.batch, non_tensor_batch=columns, meta_info=dict(batch.meta_info)))
    return aligned


def object_column(values: Iterable[Any]) -> np.ndarray:
    """A non-tensor column of a ``DataProto``: one Python object a row, whatever the rows hold.

    ``np.array(values)`` makes text of fixed width or numbers of them, and refuses lists of differing lengths;
    ``np.array(values, dtype=object)`` still makes lists of one length a second dimension.

    Args:
        values: One value a row. Of an array, the Python objects that its rows amount to.

    Returns:
        Shape ``[rows]``, dtype object.
    """
    import numpy as np

    rows = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return np.fromiter(rows, dtype=object, count=len(rows))


def union_batches(batch: DataProto, other: DataProto) -> DataProto:
    """``batch.union(other)``, which sees no column's length, after a look at all of them.

    Args:
        batch: verl ``DataProto`` with tensors; gets the tensors, columns and meta info of ``other``.
        other: verl ``DataProto`` with tensors and as many rows; left as it is.

    Returns:
        ``batch``.

    Raises:
        ValueError: The two, or any non-tensor column, differ in rows; ``batch`` is as it was.
    """
    rows = len(batch)
    if len(other) != rows:
        raise ValueError(
            f"union of a batch of {rows} rows with one of {len(other)}: repeat the prompts once for each of their "
            "completions, or concat what was added to one batch to the other too"
        )
    for which, one in (("first", batch), ("second", other)):
        for key, column in one.non_tensor_batch.items():
            if len(column) != rows:
                raise ValueError(
                    f"union of batches of {rows} rows: the column {key!r} of the {which} has {len(column)} rows"
                )
    return batch.union(other)


def info_mask(tokenizer: PreTrainedTokenizerBase, response_ids: Sequence[int]) -> list[int]:
    """Tell the tokens that the policy wrote from text that the system inserted into its response.

    Inserted are ``<information>…</information>``, nested ones included, and lines from ``My previous action is
    invalid`` on, with the line breaks around them, also where the limit cut them short. For sampled and for replayed
    responses alike: what counts is the text. In doubt a token is not trained on: one with a single inserted character,
    all that follows an ``<information>`` that nothing closes, an end that may be the beginning of either.

    Args:
        tokenizer: Byte-level BPE or SentencePiece.
        response_ids: Without padding.

    Returns:
        For each token 1 if the policy wrote it, else 0: multiply the response mask by it.
    """
    pieces = tokenizer.convert_ids_to_tokens([int(token) for token in response_ids])
    spelt = ["\n" if piece == "<0x0A>" else piece.translate(_SPELT) for piece in pieces]
    spans = _inserted("".join(spelt))
    mask, end = [], 0
    for piece in spelt:
        begin, end = end, end + len(piece)
        mask.append(int(not any(first < end and begin < last for first, last in spans)))
    return mask


def _inserted(text: str) -> list[tuple[int, int]]:
    """Where the system's text begins and ends."""
    spans: list[tuple[int, int]] = []
    depth = 0
    for tag in _INFORMATION.finditer(text):
        if not tag[1]:
            if depth == 0:
                spans.append((tag.start(), len(text)))  # if nothing closes it
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                spans[-1] = (spans[-1][0], tag.end())
    spans += [found.span() for found in re.finditer(rf"{_INVALID_ACTION}[^\n]*", text)]
    starts = ["<information>", _INVALID_ACTION]
    cut = max(length for start in starts for length in range(len(start)) if text.endswith(start[:length]))
    spans.append((len(text) - cut, len(text)))
    return [(len(text[:begin].rstrip("\n")), len(text) - len(text[end:].lstrip("\n"))) for begin, end in spans]


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
