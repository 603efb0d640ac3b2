"""Which check looks at which columns: each rule gives the findings of one check, or why it cannot be made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pytest_rlregress.audit import checks, group_checks
from pytest_rlregress.audit.batch import TokenRows
from pytest_rlregress.audit.columns import LOG_PROBS, NAMES, OF_RESPONSES
from pytest_rlregress.audit.findings import Finding
from pytest_rlregress.audit.seen import SeenRows

#: Every check, and what it says is so.
CHECKS = {
    "lengths": "every column has one number for each token of the response",
    "ids": "ids are ids, and input_ids are the prompts and the responses",
    "mask": "what is trained on is attended to, and every row has some of it",
    "reward": "a reward on a token stands on one that is trained on",
    "not-a-number": "no NaN and no infinity where it is trained on",
    "log-probs": "log-probabilities are not above 0",
    "filled": "log-probabilities that were missing are not filled with 0",
    "shifted": "two columns of log-probabilities are of the same tokens, not shifted by one",
    "end": "a response that ended before the limit has its end token, trained on",
    "positions": "positions count tokens, not padding",
    "group-size": "groups have as many samples as one another",
    "group-spread": "the rewards of a group differ",
    "duplicate": "samples of a prompt are not the same tokens",
}


@dataclass(frozen=True)
class AuditContext:
    """What the rules know besides the rows.

    Attributes:
        names: What the batch calls each column, by the names used here.
        ends: Ids of end tokens; none where they are not known.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    ends: Collection[int] = ()

    def name(self, *known: str) -> str:
        """Return the batch's name of the first of these columns that it has."""
        return next((self.names[one] for one in known if one in self.names), known[0])


class UncheckedReason(str):
    """Why a check was not made."""


Result: TypeAlias = "list[Finding] | UncheckedReason"


def _lengths(rows: TokenRows, context: AuditContext) -> Result:
    return rows.findings


def _ids(rows: TokenRows, context: AuditContext) -> Result:
    ids, attention = rows.ids, rows.attention
    if ids is None or attention is None:
        return _none_of("input_ids", "responses")
    whole = context.name("input_ids", "responses")
    found = checks.ids_are_ids(ids, attention, whole)
    if "input_ids" in context.names:
        width, prompts = rows.mask.shape[1], rows.columns.get("prompts")
        if "responses" in context.names and rows.responses is not None:
            attended = rows.attended
            found += checks.same_ids(rows.responses, ids[:, -width:], attended, context.name("responses"), whole)
        if prompts is not None and prompts.shape[1] + width == ids.shape[1]:
            part = slice(prompts.shape[1])
            found += checks.same_ids(prompts, ids[:, part], attention[:, part], context.name("prompts"), whole)
    return found


def _mask(rows: TokenRows, context: AuditContext) -> Result:
    name = context.name("response_mask", "completion_mask")
    found = checks.mask_inside_attention(rows.mask, rows.attended, name)
    return found + checks.mask_has_tokens(rows.mask, name)


def _reward(rows: TokenRows, context: AuditContext) -> Result:
    names = ("token_level_scores", "token_level_rewards", "rewards")
    on_tokens = [one for one in names if one in rows.columns and rows.columns[one].shape == rows.mask.shape]
    if not on_tokens and "rewards" in context.names:
        return UncheckedReason("its rewards are of rows and not of tokens")
    return _each(on_tokens, checks.reward_is_trained_on, rows, context) if on_tokens else _none_of(*names)


def _not_a_number(rows: TokenRows, context: AuditContext) -> Result:
    columns = [one for one in (*OF_RESPONSES, "advantages", "rewards") if one in rows.columns]
    fitting = [one for one in columns if rows.columns[one].dim() == 1 or rows.columns[one].shape == rows.mask.shape]
    return _each(fitting, checks.finite, rows, context) if fitting else _none_of(*LOG_PROBS, "advantages", "rewards")


def _log_probs(rows: TokenRows, context: AuditContext) -> Result:
    columns = rows.log_probs()
    return _each(columns, checks.not_above_zero, rows, context) if columns else _none_of(*LOG_PROBS)


def _each(
    columns: Iterable[str], check: Callable[..., list[Finding]], rows: TokenRows, context: AuditContext
) -> list[Finding]:
    return [found for one in columns for found in check(rows.columns[one], rows.mask, context.name(one))]


def _filled(rows: TokenRows, context: AuditContext) -> Result:
    columns = rows.log_probs()
    if not columns:
        return _none_of(*LOG_PROBS)
    found = []
    for one, value in columns.items():
        other = next((name for name in columns if name != one), None)
        beside = (columns[other], context.name(other)) if other else ()
        found += checks.filled_with_zero(value, rows.mask, context.name(one), *beside)
    return found


def _shifted(rows: TokenRows, context: AuditContext) -> Result:
    columns = list(rows.log_probs().items())
    if len(columns) < 2:
        return UncheckedReason("it takes two columns of log-probabilities, or --model DIR")
    (one, values), *others = columns
    return [
        finding
        for other, beside in others
        for finding in checks.shifted(values, beside, rows.mask, context.name(one), context.name(other))
    ]


def _end(rows: TokenRows, context: AuditContext) -> Result:
    if not context.ends:
        return UncheckedReason("no end token is known: --eos ID")
    if rows.responses is None:
        return _none_of("responses", "input_ids")
    columns = context.name("responses", "input_ids"), context.name("response_mask", "completion_mask")
    return checks.ends_kept(rows.responses, rows.attended, rows.mask, context.ends, columns)


def _positions(rows: TokenRows, context: AuditContext) -> Result:
    positions = rows.columns.get("position_ids")
    if positions is None:
        return _none_of("position_ids")
    if positions.dim() == 3:
        return UncheckedReason(f"{context.name('position_ids')} has three dimensions, as models of images want it")
    if rows.attention is None or positions.shape != rows.attention.shape:
        return UncheckedReason(f"{context.name('position_ids')} is not as wide as the attention mask")
    return checks.positions_count(positions, rows.attention, context.name("position_ids"))


def _group_size(seen: SeenRows, context: AuditContext) -> Result:
    if not seen.groups:
        return _none_of("uid", "prompts")
    if not seen.has_groups:
        return UncheckedReason("every row is a group of its own")
    return group_checks.group_sizes(seen.groups, context.name("uid", "prompts"))


def _group_spread(seen: SeenRows, context: AuditContext) -> Result:
    if not seen.has_groups:
        return UncheckedReason("there are no groups")
    if not seen.rewards:
        return _none_of("token_level_scores", "rewards")
    return group_checks.group_spread(seen.groups, seen.rewards, seen.reward_column)


def _duplicate(seen: SeenRows, context: AuditContext) -> Result:
    if not seen.has_groups:
        return UncheckedReason("there are no groups")
    if not seen.samples:
        return _none_of("responses", "input_ids")
    column = context.name("responses", "input_ids")
    return group_checks.duplicates(seen.groups, seen.samples, seen.lengths, seen.log_probs or None, column)


def _none_of(*names: str) -> UncheckedReason:
    return UncheckedReason(f"there is none of {', '.join(column for name in names for column in NAMES[name])}")


TOKEN_RULES: dict[str, Callable[[TokenRows, AuditContext], Result]] = {
    "lengths": _lengths,
    "ids": _ids,
    "mask": _mask,
    "reward": _reward,
    "not-a-number": _not_a_number,
    "log-probs": _log_probs,
    "filled": _filled,
    "shifted": _shifted,
    "end": _end,
    "positions": _positions,
}
GROUP_RULES: dict[str, Callable[[SeenRows, AuditContext], Result]] = {
    "group-size": _group_size,
    "group-spread": _group_spread,
    "duplicate": _duplicate,
}
