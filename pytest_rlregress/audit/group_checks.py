"""Checks of rows against each other: groups of one prompt, their rewards, samples that are the same."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from pytest_rlregress.audit.findings import Finding, Place, found_rows

#: Two samples that are equal by chance once in a million batches or less are no chance.
_BY_CHANCE = 1e-6
#: Without log-probabilities: as many tokens are not equal by chance.
_SAME_TOKENS = 16
#: As many characters of a text, which are some 20 tokens.
_SAME_CHARACTERS = 80


def rows_of(group: Iterable[Hashable]) -> dict[Hashable, list[int]]:
    """Return the rows of each group, in the order in which the groups begin."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for row, name in enumerate(group):
        found[name].append(row)
    return dict(found)


def group_sizes(groups: Mapping[Hashable, Sequence[int]], column: str = "uid") -> list[Finding]:
    """Check that all groups have as many rows. Groups of one row throughout aren't groups, and nothing is found."""
    sizes = Counter(map(len, groups.values()))
    if len(sizes) < 2:
        return []
    usual = max(sizes, key=lambda size: (sizes[size], size))
    odd = {rows[0]: rows for rows in groups.values() if len(rows) != usual}
    return found_rows(
        "group-size",
        column,
        list(odd),
        f"a group doesn't have the usual {usual} rows: samples were lost, or rows carry another prompt's id. The "
        "baseline of a group of one is its own reward",
        "fill groups up or drop them whole before advantages are made; give each prompt's samples one id",
        lambda row: Place(row, None, f"{_group_of(odd[row])} has {len(odd[row])}"),
    )


def group_spread(
    groups: Mapping[Hashable, Sequence[int]], rewards: Sequence[float], column: str = "token_level_scores"
) -> list[Finding]:
    """Check that a group's rewards differ: else every advantage in it is 0. Groups of one row aren't looked at."""
    same = {
        rows[0]: rows
        for rows in groups.values()
        if len(rows) > 1 and len({rewards[row] for row in rows}) == 1 and math.isfinite(rewards[rows[0]])
    }
    return found_rows(
        "group-spread",
        column,
        list(same),
        "every row of the group has the same reward: its advantages are 0, or noise that a small divisor blows up",
        "filter such prompts or sample them again (DAPO's dynamic sampling); if it is every group, look at the reward "
        "function first: one that fails gives 0 to all",
        lambda row: Place(row, None, f"all of {_group_of(same[row])} have {rewards[row]:g}"),
    )


def duplicates(
    groups: Mapping[Hashable, Sequence[int]],
    samples: Sequence[Hashable],
    lengths: Sequence[int],
    log_probs: Sequence[float] | None = None,
    column: str = "responses",
) -> list[Finding]:
    """No two samples of a group are equal that could not be by chance.

    Args:
        groups: Rows of each group.
        samples: What stands for the ids of each row's response: the ids, or a hash of them.
        lengths: Tokens of each response.
        log_probs: The sum of each response's log-probabilities, which says how often it is equal by chance; without it,
            or where it is NaN, responses of 16 tokens count.
        column: For the finding.
    """
    same: dict[int, int] = {}
    for rows in groups.values():
        first: dict[Hashable, int] = {}
        for row in rows:
            before = first.setdefault(samples[row], row)
            if before == row:
                continue
            if log_probs is None or math.isnan(log_probs[row]):
                chance = lengths[row] < _SAME_TOKENS
            else:
                chance = math.exp(min(log_probs[row], 0)) * len(rows) ** 2 > _BY_CHANCE
            if not chance:
                same[row] = before
    return found_rows(
        "duplicate",
        column,
        sorted(same),
        "the same tokens as an earlier sample of its prompt, which by chance does not happen: replicas or samples "
        "with equal seeds",
        "give each replica and each of the n samples a seed of its own, or none",
        lambda row: Place(row, None, f"the same {lengths[row]} tokens as row {same[row]}"),
    )


def duplicate_texts(
    groups: Mapping[Hashable, Sequence[int]], texts: Sequence[str], column: str = "output"
) -> list[Finding]:
    """No two samples of a group are the same text, but short ones, which may be equal by chance."""
    same: dict[int, int] = {}
    for rows in groups.values():
        first: dict[str, int] = {}
        for row in rows:
            before = first.setdefault(texts[row], row)
            if before != row and len(texts[row].strip()) >= _SAME_CHARACTERS:
                same[row] = before
    return found_rows(
        "duplicate",
        column,
        sorted(same),
        f"the same text as an earlier sample of its prompt, of {_SAME_CHARACTERS} characters or more, which by chance "
        "does not happen: replicas or samples with equal seeds",
        "give each replica and each of the n samples a seed of its own, or none",
        lambda row: Place(row, None, f"the same {len(texts[row])} characters as row {same[row]}"),
    )


def are_numbers(values: Iterable[Any], column: str = "rewards") -> list[Finding]:
    """Check that the number of each row is one: not NaN, not infinite, not missing, no text."""
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    return found_rows(
        "not-a-number",
        column,
        [row for row, value in enumerate(values) if as_number(value) is None],
        "no finite number: one of them makes every advantage of its group NaN, and the loss of the whole batch",
        "look at what the reward function returned for these rows, and give such samples a number or leave them out",
        lambda row: Place(row, None, repr(values[row])[:60]),
    )


def as_number(value: Any) -> float | None:
    """Return a finite number, or None of anything else."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def _group_of(rows: Sequence[int]) -> str:
    """Name a group by its rows, since its id is often a hash or a whole prompt: ``the group of rows 0-3``."""
    spans: list[list[int]] = []
    for row in rows:
        if spans and spans[-1][1] == row - 1:
            spans[-1][1] = row
        else:
            spans.append([row, row])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    shown = [*texts[:5], "…"] if len(texts) > 6 else texts
    return f"the group of row{'' if len(rows) == 1 else 's'} {', '.join(shown)}"
