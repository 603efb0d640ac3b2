"""Remedies for masks: which tokens of a row are trained on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["MaskedCompletion", "completion_mask", "info_mask", "trained_where_known"]

_INFORMATION = re.compile("<(/?)information>")
_INVALID_ACTION = "My previous action is invalid"
# How a token spells a space or a line break: byte-level BPE (Qwen, Llama 3), SentencePiece (Llama 2).
_SPELT = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})


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
    """Find where the system's text begins and ends."""
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
