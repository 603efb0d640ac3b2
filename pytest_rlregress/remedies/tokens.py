"""Remedies for text that becomes ids, and ids that become text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_rlregress.remedies.masks import MaskedCompletion

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

__all__ = ["next_prompt", "padded_batch", "reward_text", "rows_of_turns", "truncated", "turn_context"]


def turn_context(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return the ids that the chat template puts between two turns of the assistant, the separator included.

    Taken from a rendering of the whole conversation, behind the token that ends the turn: rendering what was added by
    itself has no separator, and a system prompt too many.

    Args:
        tokenizer: With a chat template whose assistant turns end in ``eos_token``.
        messages: The conversation up to an assistant turn, which is the last message; what it says does not matter.
        added: What follows it: tool outputs, a user's turn.

    Returns:
        Separator, added messages and generation prompt, without the token that ends the turn.

    Raises:
        ValueError: The last message is not the assistant's, or the template does not write ``eos_token`` behind it.
    """
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError("the messages end with the assistant turn that the others follow")
    said = "what the assistant said"
    while any(said in str(message) for message in (*messages, *added)):
        said += "."
    text = tokenizer.apply_chat_template(
        [*messages[:-1], {**messages[-1], "content": said}, *added], tokenize=False, add_generation_prompt=True
    )
    _, end, behind = text.partition(said)[2].partition(tokenizer.eos_token)
    if not end:
        raise ValueError(f"the chat template does not end an assistant turn with {tokenizer.eos_token!r}")
    return tokenizer.encode(behind, add_special_tokens=False)  # type: ignore[no-any-return]


def next_prompt(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    messages: Sequence[Mapping[str, Any]],
    added: Sequence[Mapping[str, Any]],
) -> list[int]:
    """Return the next turn's prompt: the ids so far as they are, then those of what is added. Nothing is encoded twice.

    Args:
        tokenizer: With a chat template whose assistant turns end in ``eos_token``.
        ids: The last prompt and what was sampled upon it; left as they are.
        messages: The same as text, up to the assistant turn that was sampled, which is the last message.
        added: What follows it: tool outputs, a user's turn.

    Returns:
        ``ids``, the token that ends the turn if it was cut short of it, and the ``turn_context``.

    Raises:
        ValueError: As ``turn_context``.
    """
    end = [] if ids[-1] == tokenizer.eos_token_id else [tokenizer.eos_token_id]
    return [*ids, *end, *turn_context(tokenizer, messages, added)]


def rows_of_turns(turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[MaskedCompletion]:
    """Make the rows to train on of a conversation's turns: one row for as long as each prompt goes on from the last.

    A template that rewrites earlier turns, or a prompt that was encoded again, begins another row. So each sampled
    token is trained on once, behind just the tokens that it was sampled behind.

    Args:
        turns: Of each turn, in order, the ids that the engine was given and those that it sampled.

    Returns:
        Rows with the ids of the first prompt, and of all that follows it; the mask is 1 for what was sampled.
    """
    rows: list[tuple[list[int], list[int], list[int]]] = []
    for prompt, sampled in turns:
        if rows:
            first, rest, mask = rows[-1]
            so_far = first + rest
            if list(prompt[: len(so_far)]) == so_far:
                context = list(prompt[len(so_far) :])
                rest += [*context, *sampled]
                mask += [0] * len(context) + [1] * len(sampled)
                continue
        rows.append((list(prompt), list(sampled), [1] * len(sampled)))
    return [MaskedCompletion(*row) for row in rows]


def reward_text(tokenizer: PreTrainedTokenizerBase, completion_ids: Sequence[int]) -> str:
    """Return the text of a completion as a reward must see it: every token but the padding and the end of the turn.

    ``skip_special_tokens=True`` takes away tags that are special tokens, too: ``<think>``, tool calls. Without it the
    end of the turn stays, and a pattern that ends in ``$`` does not match.

    Args:
        tokenizer: Whose ``eos_token`` and ``pad_token`` are taken away at the end, and nowhere else.
        completion_ids: As sampled, or padded on the right.
    """
    ids = list(completion_ids)
    while ids and ids[-1] in (tokenizer.eos_token_id, tokenizer.pad_token_id):
        ids.pop()
    # The clean-up, on by default in some tokenizers of transformers 4, takes away spaces.
    return tokenizer.decode(  # type: ignore[no-any-return]
        ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def truncated(
    completion_ids: Sequence[Sequence[int]], finish_reasons: Sequence[str | None], stop_ids: Sequence[int]
) -> list[bool]:
    """Tell which completions were cut short, by the engine's word where it gives one.

    Args:
        completion_ids: As sampled, without padding.
        finish_reasons: Of each completion the engine's: "stop" is a finished one, whatever it ends with; any other
            ("length", "abort") a cut one. None where the engine gives none: then the last id tells.
        stop_ids: All ids that end a completion: the tokenizer's, the generation config's, those asked for in sampling.

    Raises:
        ValueError: Completions and reasons differ in number.
    """
    if len(completion_ids) != len(finish_reasons):
        raise ValueError(f"{len(completion_ids)} completions but {len(finish_reasons)} finish reasons")
    return [
        reason != "stop" if reason is not None else not (ids and ids[-1] in stop_ids)
        for ids, reason in zip(completion_ids, finish_reasons, strict=True)
    ]


def padded_batch(rows: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pad rows on the right, and mask by their lengths: an id that also pads is trained on where it was written.

    Args:
        rows: Token ids, each row as long as it likes.
        pad_token_id: May be the id of a token that the rows hold, such as the one that ends them.

    Returns:
        ``input_ids``, ``attention_mask`` (1 for a row's own tokens) and ``labels`` (-100 for the padding alone), each
        int64 of shape ``[rows, longest]``.
    """
    import torch

    longest = max(map(len, rows), default=0)
    return {
        name: torch.tensor([[*own(row), *[padding] * (longest - len(row))] for row in rows], dtype=torch.int64).reshape(
            len(rows), longest
        )
        for name, own, padding in (
            ("input_ids", list, pad_token_id),
            ("attention_mask", lambda row: [1] * len(row), 0),
            ("labels", list, -100),
        )
    }
