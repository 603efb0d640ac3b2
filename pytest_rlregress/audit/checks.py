"""Checks of a batch's tokens: plain functions on tensors, each returns its findings.

``R`` is the number of rows. Columns of a response are ``(R, tokens)``; masks are bool, True where there is a token
(``attended``) or where it is trained on (``mask``). Nothing is written to. On a GPU each check waits for it once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pytest_rlregress.audit.findings import Finding, Place, found_rows, found_tokens

if TYPE_CHECKING:
    import torch

#: In nats, above all rounding: a probability can't be more than 1.01, and one below 0.99 isn't certainty.
_ONE_PERCENT = 0.01
#: As many zeros in a row, or a whole response of them: a model that is as sure as that of so many tokens is rare.
_ZEROS = 16
#: Rows with fewer tokens than that are too short to tell a shift from chance.
SHIFT_TOKENS = 8


def ids_are_ids(ids: torch.Tensor, attended: torch.Tensor, column: str = "input_ids") -> list[Finding]:
    """Token ids are from 0 on wherever the attention mask has a token."""
    return found_tokens(
        "ids",
        column,
        (ids < 0) & attended,
        "the attention mask has a token where the id is below 0, as labels have it where nothing is trained",
        "dump the ids that the model was given, not the labels",
        lambda row, token: f"id {int(ids[row, token])}",
    )


def same_ids(
    part: torch.Tensor, whole: torch.Tensor, attended: torch.Tensor, column: str, whole_column: str
) -> list[Finding]:
    """Prompts, or responses, are the ids that ``input_ids`` has in their place."""
    return found_tokens(
        "ids",
        column,
        (part != whole) & attended,
        f"the id is not the one that {whole_column} has there: what is trained on was not sampled, or is another row's",
        f"build {whole_column} from prompts and responses of one and the same batch; reorder rows of both together",
        lambda row, token: f"{int(part[row, token])}, and {int(whole[row, token])} in {whole_column}",
    )


def mask_inside_attention(mask: torch.Tensor, attended: torch.Tensor, column: str = "response_mask") -> list[Finding]:
    """Check that what is trained on is attended to."""
    return found_tokens(
        "mask",
        column,
        mask & ~attended,
        "a token is trained on that the attention mask calls padding",
        "make the response mask from the response's part of the attention mask: attention_mask[:, -tokens:] times "
        "what is known of tools and users",
    )


def mask_has_tokens(mask: torch.Tensor, column: str = "response_mask") -> list[Finding]:
    """Check that every row has a token to train on."""
    rows = (~mask.any(dim=1)).nonzero()[:, 0].tolist()
    return found_rows(
        "mask",
        column,
        rows,
        "not one token of the row is trained on; means over its tokens divide by 0",
        "drop such rows before advantages are made, or count them on purpose",
    )


def reward_is_trained_on(
    rewards: torch.Tensor, mask: torch.Tensor, column: str = "token_level_scores"
) -> list[Finding]:
    """Check that a reward stands on a token that is trained on: on another one it is masked away."""
    return found_tokens(
        "reward",
        column,
        (rewards != 0) & ~mask,
        "a reward stands on a token outside of the response mask, and is multiplied by 0",
        "put the reward on the last token that the response mask has, not on the last one of the response",
        lambda row, token: f"{float(rewards[row, token]):g}",
    )


def finite(values: torch.Tensor, mask: torch.Tensor, column: str) -> list[Finding]:
    """Numbers are numbers wherever they are trained on; ``values`` are ``(R, tokens)`` or ``(R,)``."""
    wrong = ~values.isfinite()
    if values.dim() == 1:
        wrong, values = wrong[:, None], values[:, None]
    else:
        wrong = wrong & mask
    return found_tokens(
        "not-a-number",
        column,
        wrong,
        "a NaN or an infinity: one of them makes the loss of the whole batch NaN",
        "find where it comes from (a log of 0, a row without a token, a masked logit), and drop the row until then",
        lambda row, token: f"{float(values[row, token])}",
    )


def not_above_zero(log_probs: torch.Tensor, mask: torch.Tensor, column: str) -> list[Finding]:
    """Log-probabilities are not above 0."""
    return found_tokens(
        "log-probs",
        column,
        (log_probs > _ONE_PERCENT) & log_probs.isfinite() & mask,
        "a log-probability above 0: probabilities, negative ones or something else are in its place",
        "dump the log-probability of the sampled token, in nats",
        lambda row, token: f"{float(log_probs[row, token]):g}",
    )


def filled_with_zero(
    log_probs: torch.Tensor,
    mask: torch.Tensor,
    column: str,
    other: torch.Tensor | None = None,
    other_column: str = "",
) -> list[Finding]:
    """Log-probabilities that are exactly 0 were sampled with certainty, or are missing and were filled.

    With another column of the same tokens: 0 here, and by the other less sure than 99 % is missing. Without one: a
    whole response of zeros, or a run of 16.
    """
    zeros = (log_probs == 0) & mask
    if not zeros.any():
        return []
    if other is not None:
        bad = zeros & (other < -_ONE_PERCENT)
        why = f"exactly 0, so as if certain, where {other_column} is below -{_ONE_PERCENT:g}"
    else:
        bad = zeros & (_runs(zeros, mask, _ZEROS) | (zeros.sum(dim=1) == mask.sum(dim=1))[:, None])
        why = f"exactly 0, so as if certain, in a whole response or in {_ZEROS} trained tokens in a row"
    return found_tokens(
        "filled",
        column,
        bad,
        f"{why}: log-probabilities that were missing were filled with 0, and the ratio is off by their size",
        "ask the engine for the log-probability of every sampled token; mask those that it did not give",
        lambda row, token: "0" if other is None else f"0, and {float(other[row, token]):.4g} in {other_column}",
    )


def _runs(flags: torch.Tensor, within: torch.Tensor, length: int) -> torch.Tensor:
    """Find where ``flags`` are in a run of at least ``length``; a column outside of ``within`` doesn't end a run."""
    import torch

    found = torch.zeros_like(flags)
    for row in (flags.sum(dim=1) >= length).nonzero()[:, 0].tolist():
        at = within[row].nonzero()[:, 0]
        values, counts = torch.unique_consecutive(flags[row, at], return_counts=True)
        found[row, at] = (values & (counts >= length)).repeat_interleave(counts)
    return found


def gaps(one: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of |one - other| over the trained tokens of each row, and their number."""
    difference = (one - other).abs().masked_fill(~mask | ~one.isfinite() | ~other.isfinite(), 0)
    return difference.sum(dim=1), mask.sum(dim=1)


def are_enough_to_shift(mask: torch.Tensor) -> bool:
    """Return whether a row has enough tokens beside each other to tell a shift from chance."""
    return bool(((mask[:, 1:] & mask[:, :-1]).sum(dim=1) >= SHIFT_TOKENS).any())


def shifted(
    log_probs: torch.Tensor, other: torch.Tensor, mask: torch.Tensor, column: str, other_column: str
) -> list[Finding]:
    """Two columns of log-probabilities are of the same tokens: shifted by one their gap is not four times smaller.

    Which of the two is not the sampled tokens' cannot be seen from them alone.
    """
    here, count = gaps(log_probs, other, mask)
    both = mask[:, 1:] & mask[:, :-1]
    late, pairs = gaps(log_probs[:, 1:], other[:, :-1], both)
    early, _ = gaps(log_probs[:, :-1], other[:, 1:], both)
    mean = here / count.clamp(min=1)
    found = []
    enough = (pairs >= SHIFT_TOKENS) & (mean > 1e-3)
    for sums, direction, beside in ((late, "late", "before"), (early, "early", "after")):
        shift = sums / pairs.clamp(min=1)
        rows = (enough & (shift * 4 < mean)).nonzero()[:, 0].tolist()
        found += found_rows(
            "shifted",
            column,
            rows,
            f"the numbers stand one token too {direction} beside those of {other_column}: each agrees with its number "
            f"of the token {beside} it, and not of its own. Which of the two columns is shifted cannot be seen "
            "from them",
            "logits at position t are of token t + 1: gather logits[:, :-1] with ids[:, 1:], and cut both to the "
            "response in the same way",
            lambda row, shift=shift: Place(  # type: ignore[misc]  # bound now: the loop goes on
                row, int(mask[row].byte().argmax()), f"gap {mean[row]:.4g} as it is, {shift[row]:.4g} shifted"
            ),
        )
    return found


def ends_kept(
    responses: torch.Tensor,
    attended: torch.Tensor,
    mask: torch.Tensor,
    ends: Collection[int],
    columns: tuple[str, str] = ("responses", "response_mask"),
) -> list[Finding]:
    """Check that a response that ended before the limit ends with an end token, which is trained on.

    One that fills its row was cut by the limit, and may lack it.
    """
    import torch

    width = responses.shape[1]
    last = (attended * torch.arange(1, width + 1, device=attended.device)).amax(dim=1) - 1
    has = (last >= 0) & (last < width - 1)
    at = last.clamp(min=0)[:, None]
    ids = responses.gather(1, at)[:, 0]
    ended = torch.isin(ids, torch.tensor(sorted(ends), device=ids.device, dtype=ids.dtype))
    trained = mask.gather(1, at)[:, 0] | ~mask.any(dim=1)

    def place(row: int) -> Place:
        return Place(row, int(last[row]), f"id {int(ids[row])}")

    cut = found_rows(
        "end",
        columns[0],
        (has & ~ended).nonzero()[:, 0].tolist(),
        "ended before the limit, and its last token isn't an end token: the token that ended it was cut off",
        "keep the end token that the engine sampled: without it the policy never learns to stop",
        place,
    )
    untrained = found_rows(
        "end",
        columns[1],
        (has & ended & ~trained).nonzero()[:, 0].tolist(),
        "the end token is attended to and not trained on: the policy never learns to stop",
        "let the mask reach to the end token, inclusive; it is often lost where the padding token is the end token too",
        place,
    )
    return cut + untrained


def positions_count(positions: torch.Tensor, attended: torch.Tensor, column: str = "position_ids") -> list[Finding]:
    """Positions count the attended tokens from 0, whatever the padding before them."""
    wanted = attended.cumsum(dim=1) - 1
    return found_tokens(
        "positions",
        column,
        (positions != wanted) & attended,
        "the position is not the number of attended tokens before it: padding was counted, or rows do not begin at 0",
        "position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)",
        lambda row, token: f"{int(positions[row, token])}, and {int(wanted[row, token])} tokens before it",
    )
