"""All checks of a batch, piece by piece, and which columns each looks at: of tokens at once, of groups at the end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_rlregress.audit import checks, columns, group_checks
from pytest_rlregress.audit.batch import TokenRows, token_rows
from pytest_rlregress.audit.columns import LOG_PROBS, NAMES, OF_RESPONSES
from pytest_rlregress.audit.findings import Finding, merge, move
from pytest_rlregress.audit.seen import ColumnComparison, SeenRows

_TOKEN_CHECKS = {
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
}
#: Every check, and what it says is so.
CHECKS = _TOKEN_CHECKS | {
    "group-size": "groups have as many samples as one another",
    "group-spread": "the rewards of a group differ",
    "duplicate": "samples of a prompt are not the same tokens",
}
#: A check's findings, or why it cannot be made.
Result = list[Finding] | str


def _none_of(*names: str) -> str:
    return f"there is none of {', '.join(column for name in names for column in NAMES[name])}"


def _check_tokens(rows: TokenRows, names: Mapping[str, str], ends: Collection[int]) -> dict[str, Result]:
    """Return the result of each check of tokens.

    Args:
        rows: Those that are looked at.
        names: What the batch calls each column, by the names used here.
        ends: Ids of end tokens; none where they are not known.
    """
    mask, log_probs = rows.mask, rows.log_probs()
    mask_name = _name(names, "response_mask", "completion_mask")

    def check_each(wanted: Iterable[str], check: Callable[..., list[Finding]], otherwise: str) -> Result:
        fitting = [one for one in wanted if one in rows.columns and _is_numbers(rows, one, check)]
        found = [finding for one in fitting for finding in check(rows.columns[one], mask, _name(names, one))]
        return found if fitting else otherwise

    rewards = ("token_level_scores", "token_level_rewards", "rewards")
    no_reward = "its rewards are of rows and not of tokens" if "rewards" in names else _none_of(*rewards)
    numbers = (*OF_RESPONSES, "advantages", "rewards")
    return {
        "lengths": rows.findings,
        "ids": _check_ids(rows, names),
        "mask": checks.mask_inside_attention(mask, rows.attended, mask_name) + checks.mask_has_tokens(mask, mask_name),
        "reward": check_each(rewards, checks.reward_is_trained_on, no_reward),
        "not-a-number": check_each(numbers, checks.finite, _none_of(*LOG_PROBS, "advantages", "rewards")),
        "log-probs": check_each(log_probs, checks.not_above_zero, _none_of(*LOG_PROBS)),
        "filled": _check_filled(rows, names),
        "shifted": _check_shifted(rows, names),
        "end": _check_ends(rows, names, ends),
        "positions": _check_positions(rows, names),
    }


def _name(names: Mapping[str, str], *known: str) -> str:
    """Return the batch's name of the first of these columns that it has."""
    return next((names[one] for one in known if one in names), known[0])


def _is_numbers(rows: TokenRows, column: str, check: Callable[..., list[Finding]]) -> bool:
    """Return whether a check can take a column: of a number for each token, or for each row, if it takes those too."""
    value = rows.columns[column]
    return value.shape == rows.mask.shape or (check is checks.finite and value.dim() == 1)


def _check_ids(rows: TokenRows, names: Mapping[str, str]) -> Result:
    ids, attention = rows.ids, rows.attention
    if ids is None or attention is None:
        return _none_of("input_ids", "responses")
    whole = _name(names, "input_ids", "responses")
    found = checks.ids_are_ids(ids, attention, whole)
    if "input_ids" in names:
        width, prompts = rows.mask.shape[1], rows.columns.get("prompts")
        if "responses" in names and rows.responses is not None:
            found += checks.same_ids(rows.responses, ids[:, -width:], rows.attended, names["responses"], whole)
        if prompts is not None and prompts.shape[1] + width == ids.shape[1]:
            part = slice(prompts.shape[1])
            found += checks.same_ids(prompts, ids[:, part], attention[:, part], names["prompts"], whole)
    return found


def _check_filled(rows: TokenRows, names: Mapping[str, str]) -> Result:
    log_probs, found = rows.log_probs(), []
    for one, value in log_probs.items():
        other = next((name for name in log_probs if name != one), None)
        beside = (log_probs[other], _name(names, other)) if other else ()
        found += checks.filled_with_zero(value, rows.mask, _name(names, one), *beside)
    return found if log_probs else _none_of(*LOG_PROBS)


def _check_shifted(rows: TokenRows, names: Mapping[str, str]) -> Result:
    log_probs = list(rows.log_probs().items())
    if len(log_probs) < 2:
        return "it takes two columns of log-probabilities, or --model DIR"
    (one, values), *others = log_probs
    return [
        finding
        for other, beside in others
        for finding in checks.shifted(values, beside, rows.mask, _name(names, one), _name(names, other))
    ]


def _check_ends(rows: TokenRows, names: Mapping[str, str], ends: Collection[int]) -> Result:
    if not ends:
        return "no end token is known: --eos ID"
    if rows.responses is None:
        return _none_of("responses", "input_ids")
    of = _name(names, "responses", "input_ids"), _name(names, "response_mask", "completion_mask")
    return checks.ends_kept(rows.responses, rows.attended, rows.mask, ends, of)


def _check_positions(rows: TokenRows, names: Mapping[str, str]) -> Result:
    positions = rows.columns.get("position_ids")
    if positions is None:
        return _none_of("position_ids")
    name = _name(names, "position_ids")
    if positions.dim() == 3:
        return f"{name} has three dimensions, as models of images want it"
    if rows.attention is None or positions.shape != rows.attention.shape:
        return f"{name} is not as wide as the attention mask"
    return checks.positions_count(positions, rows.attention, name)


def _check_groups(seen: SeenRows, names: Mapping[str, str]) -> dict[str, Result]:
    """Return the result of each check of groups, after the last row."""
    groups = group_checks.rows_of(seen.group)
    if len(groups) == len(seen.group):
        why = "every row is a group of its own" if groups else _none_of("uid", "prompts")
        return {"group-size": why, "group-spread": "there are no groups", "duplicate": "there are no groups"}
    spread: Result = _none_of("token_level_scores", "rewards")
    if seen.rewards:
        spread = group_checks.group_spread(groups, seen.rewards, seen.reward_column)
    equal: Result = _none_of("responses", "input_ids")
    if seen.samples:
        column = _name(names, "responses", "input_ids")
        equal = group_checks.duplicates(groups, seen.samples, seen.lengths, seen.log_probs or None, column)
    sizes = group_checks.group_sizes(groups, _name(names, "uid", "prompts"))
    return {"group-size": sizes, "group-spread": spread, "duplicate": equal}


@dataclass
class AuditReport:
    """What the checks found.

    Attributes:
        findings: In the order of ``CHECKS``.
        checked: Names of the checks that were made.
        unchecked: Why the others were not.
        rows: Of the batch.
        tokens: That are trained on.
        notes: What was measured and isn't a finding.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    tokens: int = 0
    notes: list[str] = field(default_factory=list)


class Audit:
    """The checks over pieces of one batch.

    Attributes:
        rows: How many it has seen.

    Args:
        names: What the batch calls each column, by the names used here.
        ends: Ids of end tokens; none where they are not known.
        skip: Checks that are not to be made.
    """

    def __init__(self, names: Mapping[str, str], ends: Collection[int] = (), skip: Collection[str] = ()) -> None:
        self._names, self._ends, self._skip = names, ends, frozenset(skip)
        self._found: dict[str, list[Finding]] = {}  # by check, of those that were made
        self._unchecked = dict.fromkeys(skip, "--skip")
        self._seen = SeenRows(names)
        self._comparison = ColumnComparison()
        self.rows = self._tokens = 0

    def add(self, values: Mapping[str, Any]) -> TokenRows | None:
        """Check some rows, by the names used here; None where there are no tokens in them.

        Raises:
            BatchError: A column has another shape or dtype than it can have.
        """
        rows = None
        if has_tokens(values):
            of_tokens = {name: one for name, one in values.items() if name != "uid" and not isinstance(one, list)}
            rows = token_rows(of_tokens, self._names)
            self._take(_check_tokens(rows, self._names, self._ends), self.rows)
            self._comparison.add(rows, self.rows)
            self._tokens += int(rows.mask.sum())
        else:
            self._take(dict.fromkeys(_TOKEN_CHECKS, "there are no tokens in it"), self.rows)
        self._seen.add(rows, values)
        self.rows += len(next(iter(values.values()))) if rows is None else len(rows.mask)
        return rows

    def report(self) -> AuditReport:
        """Return all findings, after the last rows."""
        self._take(_check_groups(self._seen, self._names), 0)
        if self._found.get("shifted") == []:
            self._found["shifted"] = self._comparison.find_unrelated(self._names)
        return AuditReport(
            [finding for name in CHECKS for finding in merge(self._found.get(name, ()))],
            [name for name in CHECKS if name in self._found],
            {name: self._unchecked[name] for name in CHECKS if name not in self._found},
            self.rows,
            self._tokens,
            self._comparison.notes(self._names),
        )

    def _take(self, results: Mapping[str, Result], start: int) -> None:
        """Keep the results for a piece of the batch that begins at the row ``start``."""
        for name, result in results.items():
            if isinstance(result, str):
                self._unchecked.setdefault(name, result)
            elif name not in self._skip:
                self._found.setdefault(name, []).extend(move(result, start))


def has_tokens(values: Collection[str]) -> bool:
    """Return whether columns of these names say something of tokens."""
    return bool({"input_ids", "responses", "response_mask", "completion_mask", "attention_mask"} & {*values})


def audit_batch(
    batch: Mapping[str, Any],
    group: Any = None,
    ends: Collection[int] = (),
    mapped: Mapping[str, str] | None = None,
    skip: Collection[str] = (),
) -> list[Finding]:
    """Check a batch in memory, such as between rollout and update of a training loop.

    Args:
        batch: Tensors by their names in verl, TRL or OpenRLHF: a TensorDict or a dict. Left as it is; what isn't a
            tensor with rows is not looked at.
        group: The group of each row, as ``non_tensor_batch["uid"]``; by default rows of one prompt are a group.
        ends: Ids of end tokens; without them the check ``end`` is not made.
        mapped: Columns under other names: ``{"response_mask": "my_mask"}``.
        skip: Names of checks that are not to be made.

    Returns:
        What is wrong, most general first; empty where nothing is.

    Raises:
        BatchError: It cannot be checked: no masks, columns of differing rows, a column of another shape or dtype.
        ValueError: ``skip`` has a name that isn't a check.
    """
    if unknown := set(skip) - CHECKS.keys():
        raise ValueError(f"no check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    tensors = {str(key): value for key, value in batch.items() if hasattr(value, "dim") and value.dim()}
    if group is not None:
        tensors["uid"] = group
    found = columns.find_columns(tensors, mapped or {})
    columns.same_rows(found, {name: len(value) for name, value in tensors.items()})
    if has_tokens(found):
        columns.needs_masks(found, tensors)
    audit = Audit(found, ends, skip)
    audit.add({name: tensors[column] for name, column in found.items()})
    return audit.report().findings
