"""All checks of a batch, piece by piece, and which columns each looks at: of tokens at once, of groups at the end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pytest_rlregress.audit import checks, group_checks
from pytest_rlregress.audit.batch import (
    LOG_PROBS,
    OF_RESPONSES,
    REWARDS,
    TokenRows,
    find_columns,
    has_tokens,
    list_none,
    name_of,
    token_rows,
)
from pytest_rlregress.audit.findings import Finding, join_findings
from pytest_rlregress.audit.seen import SeenRows
from pytest_rlregress.util.coverage import Unchecked

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
#: The check that --model adds.
MODEL_CHECK = {"gap": "with --model: the log-probabilities are the model's, but for rounding"}
#: A check's findings, or why it cannot be made.
Result = list[Finding] | Unchecked
_NO_GROUPS = Unchecked("there are no groups")
_DUMPED = "a batch with tokens, as docs/audit.md dumps it"
_NO_TOKENS = Unchecked("there are no tokens in it", (_DUMPED,))
_TEXTS = Unchecked(f"a log of texts has no tokens; {_DUMPED}, has")


def _check_tokens(rows: TokenRows, ends: Collection[int]) -> dict[str, Result]:
    """Return the result of each check of tokens; ``ends`` are ids of end tokens, none where they are not known."""
    mask, log_probs = rows.mask, rows.log_probs()
    mask_name = rows.name("response_mask", "completion_mask")

    def check_each(wanted: Iterable[str], check: Callable[..., list[Finding]], otherwise: Unchecked) -> Result:
        having = {one: rows.columns[one] for one in wanted if one in rows.columns}
        fitting = {
            one: value
            for one, value in having.items()
            if value.shape == mask.shape or (check is checks.finite and value.dim() == 1)
        }
        found = [finding for one, value in fitting.items() for finding in check(value, mask, rows.name(one))]
        return found if fitting else otherwise

    rewards = ("token_level_scores", "token_level_rewards", "rewards")
    of_rows = Unchecked("its rewards are of rows and not of tokens")
    no_reward = of_rows if "rewards" in rows.names else list_none(*rewards)
    numbers = (*OF_RESPONSES, "advantages", "rewards")
    return {
        "lengths": rows.findings,
        "ids": _check_ids(rows),
        "mask": checks.mask_inside_attention(mask, rows.attended, mask_name) + checks.mask_has_tokens(mask, mask_name),
        "reward": check_each(rewards, checks.reward_is_trained_on, no_reward),
        "not-a-number": check_each(numbers, checks.finite, list_none(*LOG_PROBS, "advantages", "rewards")),
        "log-probs": check_each(log_probs, checks.not_above_zero, list_none(*LOG_PROBS)),
        "filled": _check_filled(rows),
        "shifted": _check_shifted(rows),
        "end": _check_ends(rows, ends),
        "positions": _check_positions(rows),
    }


def _check_ids(rows: TokenRows) -> Result:
    ids, attention = rows.ids, rows.attention
    if ids is None or attention is None:
        return list_none("input_ids", "responses")
    whole = rows.name("input_ids", "responses")
    found = checks.ids_are_ids(ids, attention, whole)
    if "input_ids" in rows.names:
        width, prompts = rows.mask.shape[1], rows.columns.get("prompts")
        if "responses" in rows.names and rows.responses is not None:
            found += checks.same_ids(rows.responses, ids[:, -width:], rows.attended, rows.name("responses"), whole)
        if prompts is not None and prompts.shape[1] + width == ids.shape[1]:
            part = slice(prompts.shape[1])
            found += checks.same_ids(prompts, ids[:, part], attention[:, part], rows.name("prompts"), whole)
    return found


def _check_filled(rows: TokenRows) -> Result:
    log_probs, found = rows.log_probs(), []
    for one, value in log_probs.items():
        other = next((name for name in log_probs if name != one), None)
        beside = (log_probs[other], rows.name(other)) if other else ()
        found += checks.filled_with_zero(value, rows.mask, rows.name(one), *beside)
    return found if log_probs else list_none(*LOG_PROBS)


def _check_shifted(rows: TokenRows) -> Result:
    log_probs = list(rows.log_probs().items())
    if len(log_probs) < 2:
        return Unchecked("it takes two columns of log-probabilities, or --model DIR")
    (one, values), *others = log_probs
    if not checks.are_enough_to_shift(rows.mask):
        return Unchecked(
            f"no row has {checks.SHIFT_TOKENS} trained tokens with a neighbour: too few to tell a shift from chance"
        )
    return [
        finding
        for other, beside in others
        for finding in checks.shifted(values, beside, rows.mask, rows.name(one), rows.name(other))
    ]


def _check_ends(rows: TokenRows, ends: Collection[int]) -> Result:
    if not ends:
        return Unchecked("no end token is known: --eos ID", ("--eos ID",))
    if rows.responses is None:
        return list_none("responses", "input_ids")
    names = rows.name("responses", "input_ids"), rows.name("response_mask", "completion_mask")
    return checks.ends_kept(rows.responses, rows.attended, rows.mask, ends, names)


def _check_positions(rows: TokenRows) -> Result:
    positions, name = rows.columns.get("position_ids"), rows.name("position_ids")
    if positions is None:
        return list_none("position_ids")
    if positions.dim() == 3:
        return Unchecked(f"{name} has three dimensions, as models of images want it")
    if rows.attention is None or positions.shape != rows.attention.shape:
        return Unchecked(f"{name} is not as wide as the attention mask")
    return checks.positions_count(positions, rows.attention, name)


def _check_groups(seen: SeenRows) -> dict[str, Result]:
    """Return the result of each check of groups, after the last row."""
    groups, names = group_checks.rows_of(seen.group), seen.names
    if len(groups) == len(seen.group):
        why = Unchecked("every row is a group of its own") if groups else list_none("uid", "prompts")
        return {"group-size": why, "group-spread": _NO_GROUPS, "duplicate": _NO_GROUPS}
    spread: Result = list_none("token_level_scores", "rewards")
    if seen.rewards:
        spread = group_checks.group_spread(groups, seen.rewards, seen.reward_column)
    equal: Result = list_none("responses", "input_ids", "texts")
    if seen.samples:
        column = name_of(names, "responses", "input_ids")
        equal = group_checks.duplicates(groups, seen.samples, seen.lengths, seen.log_probs or None, column)
    elif seen.texts:
        equal = group_checks.duplicate_texts(groups, seen.texts, name_of(names, "texts"))
    sizes = group_checks.group_sizes(groups, name_of(names, "uid", "prompts"))
    return {"group-size": sizes, "group-spread": spread, "duplicate": equal}


class Audit:
    """The checks over pieces of one batch, and what they find.

    Attributes:
        names: What the batch calls each column, by the names used here.
        rows: Of the batch.
        tokens: That are trained on, so far.
        found: Findings so far, by check, of those that were made.
        unchecked: Why the others were not.
        notes: What was measured and isn't a finding.

    Args:
        columns: Of the batch: tensors and lists.
        mapped: Columns under other names: ``{"response_mask": "my_mask"}``.
        ends: Ids of end tokens; none where they are not known.
        skip: Checks that are not to be made.

    Raises:
        BatchError: The columns are not those of a batch.
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        mapped: Mapping[str, str],
        ends: Collection[int] = (),
        skip: Collection[str] = (),
    ) -> None:
        self.names, self.rows = find_columns(columns, mapped)
        self.tokens, self._start = 0, 0
        self.found: dict[str, list[Finding]] = {}
        self.unchecked = dict.fromkeys(skip, Unchecked("--skip"))
        self.notes: list[str] = []
        self._ends, self._skip = ends, frozenset(skip)
        self._seen = SeenRows(self.names)

    def add(self, values: Mapping[str, Any]) -> TokenRows | None:
        """Check the next rows, by the names used here; None where there are no tokens in them.

        Raises:
            BatchError: A column has another shape or dtype than it can have.
        """
        rows = None
        if has_tokens(values):
            rows = token_rows(values, self.names, self._start)
            self._take(_check_tokens(rows, self._ends), self._start)
            self.tokens += int(rows.mask.sum())
        else:
            self._take(dict.fromkeys(_TOKEN_CHECKS, _TEXTS if self.is_log_of_texts else _NO_TOKENS))
        if of_rows := [name for name in values if name in REWARDS and (rows is None or isinstance(values[name], list))]:
            found = [one for name in of_rows for one in group_checks.are_numbers(values[name], self.names[name])]
            self._take({"not-a-number": found}, self._start)
        self._seen.add(rows, values)
        self._start += len(next(iter(values.values())))
        return rows

    def finish(self) -> None:
        """Check what takes all rows, after the last of them."""
        self._take(_check_groups(self._seen))
        if self.found.get("shifted") == []:
            self.found["shifted"] = self._seen.find_unrelated()
        self.unchecked = {name: self.unchecked[name] for name in CHECKS if name not in self.found}
        self.notes = self._seen.note_gap()

    @property
    def is_log_of_texts(self) -> bool:
        """Whether it is a rollout as trainers log it: no check of tokens applies to it."""
        return "texts" in self.names and not has_tokens(self.names)

    @property
    def findings(self) -> list[Finding]:
        """Findings, in the order of the checks."""
        return [finding for name in CHECKS | MODEL_CHECK for finding in self.found.get(name, ())]

    def _take(self, results: Mapping[str, Result], start: int = 0) -> None:
        """Keep the results for a piece of the batch that begins at the row ``start``."""
        for name, result in results.items():
            if isinstance(result, Unchecked):
                self.unchecked.setdefault(name, result)
            elif name not in self._skip:
                self.found[name] = join_findings(self.found.get(name, []), result, start)


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
    audit = Audit(tensors, mapped or {}, ends, skip)
    audit.add({name: tensors[column] for name, column in audit.names.items()})
    audit.finish()
    return audit.findings
