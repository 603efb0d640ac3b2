"""Remedies for batches: rows of unequal length, columns of objects, masks, chat templates."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset
    from tensordict import TensorDict
    from transformers import PreTrainedTokenizerBase
    from verl.protocol import DataProto

__all__ = [
    "MaskedCompletion",
    "align_batches",
    "completion_mask",
    "info_mask",
    "json_columns",
    "object_column",
    "restore_ragged",
    "reward_of_policy",
    "trained_where_known",
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


def json_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Dataset:
    """Make a data set of which some columns are kept as JSON text and read as the values that they are.

    Arrow has one type for a column: a dict in it has the keys that any row's has, the missing ones None.

    Args:
        rows: Left as they are. Of a row that lacks a column the value is None.
        columns: Those whose dicts differ from row to row, such as messages with tool calls, or tools.

    Returns:
        With a transform that reads the text: rows, slices, and what is mapped or filtered over the data set get the
        values that were given. In files it is text. What a mapped function returns under the name of such a column is
        Arrow's again.

    Raises:
        TypeError: A value that JSON does not hold, with its row and column.
    """
    from datasets import Dataset

    names = dict.fromkeys(name for row in rows for name in row)  # from_list takes those of the first row alone
    written: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        written.append({name: row.get(name) for name in names})
        for column in (column for column in columns if column in row):
            try:
                written[-1][column] = json.dumps(row[column])
            except TypeError as error:
                raise TypeError(f"row {number}, column {column!r}: {error}") from None
    return Dataset.from_list(written).with_transform(functools.partial(_read_json, frozenset(columns)))


def _read_json(columns: frozenset[str], batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    read = {
        name: [None if text is None else json.loads(text) for text in batch[name]] for name in columns & batch.keys()
    }
    return batch | read


def restore_ragged(batch: TensorDict, ragged: Mapping[str, int]) -> TensorDict:
    """Give jagged tensors of a batch that was sent their ragged dimension back.

    tensordict before 0.13 takes the first after the rows for it where a batch was consolidated and pickled. The shape
    is made right too: setting ``_ragged_idx`` leaves it wrong.

    Args:
        batch: As it came; left as it is.
        ragged: The dimension that differs from row to row, by name: ``{"position_ids": 2}`` for position ids of
            ``[rows, 3, tokens]``. A name that is not in the batch is passed over.

    Returns:
        A new batch over the same storage.

    Raises:
        ValueError: A tensor is not jagged, or that dimension has not as many elements as its rows have together.
    """
    import torch

    restored = batch.clone(recurse=False)
    for name, dimension in ragged.items():
        if name not in batch.keys():  # noqa: SIM118 - a TensorDict's own `in` takes no name
            continue
        tensor = batch[name]
        if not (tensor.is_nested and tensor.layout == torch.jagged):
            raise ValueError(f"{name!r} is no jagged tensor")
        values, offsets = tensor.values(), tensor.offsets()
        there, wanted = list(values.shape), int(offsets[-1])
        if not 1 <= dimension <= len(there) or there[dimension - 1] != wanted:
            raise ValueError(
                f"dimension {dimension} of {name!r} cannot be the ragged one: its values have the shape {there}, its "
                f"rows {wanted} elements together"
            )
        restored[name] = torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dimension)
    return restored


def trained_where_known(
    response_mask: Sequence[int], logprobs: Sequence[float | None]
) -> tuple[list[int], list[float]]:
    """Take the tokens out of the loss that the engine gave no log-probability of, such as an end that was appended.

    Filled with 0 they would count as certain: probability 1 under the policy that sampled them.

    Args:
        response_mask: For each token of a response 1 if it is trained on, else 0; left as it is.
        logprobs: For each token the engine's log-probability in nats; None, or no finite number, where there is none.

    Returns:
        The mask, 0 where there is none, and the log-probabilities, 0.0 there.

    Raises:
        ValueError: The two differ in length: which token each is of is not known.
    """
    if len(response_mask) != len(logprobs):
        raise ValueError(f"a response of {len(response_mask)} tokens has {len(logprobs)} log-probabilities")
    known = [logprob is not None and math.isfinite(logprob) for logprob in logprobs]
    mask = [int(trained and there) for trained, there in zip(response_mask, known, strict=True)]
    return mask, [logprob if there and logprob else 0.0 for logprob, there in zip(logprobs, known, strict=True)]


def reward_of_policy(manager: Callable[[DataProto], torch.Tensor], data: DataProto, pad_token_id: int) -> torch.Tensor:
    """Have a reward manager of verl's score what the policy wrote, without what tools wrote between it.

    Args:
        manager: Reads ``prompts``, ``responses`` and ``attention_mask``, and returns rewards of ``[rows, response]``.
        data: verl ``DataProto`` with ``response_mask``, 1 where the policy wrote; left as it is.
        pad_token_id: What shortened responses are filled up with.

    Returns:
        Shape ``[rows, response]``, float32: each row's reward at the last token that the policy wrote. A row without
        any is not scored, and all 0.
    """
    import torch

    mask = data.batch["response_mask"].bool()
    rewards = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    [rows] = mask.any(-1).nonzero(as_tuple=True)
    if not len(rows):
        return rewards
    mask, batch = mask[rows], data.batch[rows]
    prompts, width = batch["prompts"], mask.shape[-1]
    order = (~mask).int().argsort(dim=-1, stable=True)  # the policy's tokens first
    kept = mask.gather(-1, order)
    responses = batch["responses"].gather(-1, order).masked_fill(~kept, pad_token_id)
    there = torch.cat([batch["attention_mask"][:, :-width], kept.to(batch["attention_mask"].dtype)], 1)
    columns = {key: column[rows.cpu().numpy()] for key, column in data.non_tensor_batch.items()}
    policy = type(data).from_dict({"prompts": prompts, "responses": responses, "attention_mask": there}, columns)
    last = width - 1 - mask.int().flip(-1).argmax(-1)
    rewards[rows, last] = manager(policy).sum(-1).to(rewards.dtype)
    return rewards
