"""The value and the limit that a table shows of each property of a rehearsal's steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from pytest_rlregress.commands.rehearse import properties
from pytest_rlregress.commands.rehearse.record import RehearsalRecord

Measure = Callable[[RehearsalRecord], float | None]


def _read(name: str) -> Measure:
    return lambda record: getattr(record, name)


def _compare_norms(record: RehearsalRecord) -> float | None:
    expected = record.expected_grad_norm
    return abs((record.grad_norm or 0.0) - expected) / expected if expected else None


#: The number of a step, the larger the worse; its unit; the limit.
NUMBERS: dict[str, tuple[Measure, str, str]] = {
    "rewards used": (_read("reward_difference"), "", "≤ 1e-05"),
    "agreement": (_read("gap"), " nats", ""),
    "cached prompts": (_read("cached_gap"), " nats", f"≤ {properties.CACHED:.0e}"),
    "ratio": (_read("ratio_difference"), " nats", ""),
    "reference": (_read("reference_difference"), " nats", ""),
    "second pass": (_read("second_pass"), " nats", f"≤ {properties.SAME_BATCH:.0e}"),
    "micro batches": (_read("split_difference"), " of it", f"≤ {properties.SAME_GRADIENT:.0e}"),
    "masked tokens": (_read("masked_difference"), " of it", f"≤ {properties.SAME_GRADIENT:.0e}"),
    "gradient's norm": (_compare_norms, " of it off", f"≤ {properties.SAME_GRADIENT:.0e}"),
    "direction": (lambda record: None if record.direction is None else 1 - record.direction, " from 1", "≤ 1e-03"),
    "loss": (
        lambda record: None if record.expected_loss is None else abs((record.loss or 0) - record.expected_loss),
        " off",
        "≤ 1e-04",
    ),
}


def describe(name: str, records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    """Return the worst value of a property over the steps in which it was seen, and its limit."""
    seen = [record for record in records if name not in record.not_seen]
    if not seen:
        return "", ""
    if name in NUMBERS:
        measure, unit, limit = NUMBERS[name]
        values = [value for value in map(measure, seen) if value is not None]
        if name == "agreement":
            limit = f"≤ {properties.FLOORS * max((record.floor or 0.0) for record in seen):.1e}"
        if name in ("ratio", "reference"):
            limit = f"≤ {max(record.same for record in seen):.0e}"
        return (f"{max(values):.1e}{unit}" if values else ""), limit
    return _COUNTS[name](seen) if name in _COUNTS else ("", "")


def _count_groups(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    size = records[0].group_size or 1
    return f"{sum(len(record.group_rows or ()) for record in records) // size} groups of {size}", "one prompt each"


def _count_completions(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    count = sum(len(record.completions or ()) for record in records)
    return f"{count}, {sum(record.ended_early for record in records)} ended early", "end once"


def _count_trained(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    lengths = [length for record in records for length in record.lengths or ()]
    return f"{min(lengths, default=0)} to {max(lengths, default=0)} in a row", "≥ 1"


def _count_spread(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    own = [record.own_rewards or record.rewards or () for record in records]
    groups = [group for one in own for group in one]
    return f"{sum(len(set(group)) > 1 for group in groups)} of {len(groups)} groups", "≥ 1"


def _count_norms(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    norms = [record.grad_norm or 0.0 for record in records]
    return f"norm {min(norms):.3g} to {max(norms):.3g}", "> 0"


def _count_moved(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    looked = min(record.measured.get("looked_at", 0) for record in records)
    if looked:
        return f"{min(record.measured['moved'] for record in records):.0f} of {looked:.0f} rows looked at", "≥ 1"
    return f"{statistics.fmean(record.update_difference or 0.0 for record in records):.1e} nats a token", "all weights"


def _count_synced(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    return f"{len(records)} times, all tensors", "equal"


def _count_tokens(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    return f"{sum(len(ids) for record in records for ids in record.trained_tokens or ())} tokens", "as sampled"


def _count_prompts(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    lengths = [len(ids) for record in records for ids in record.prompts or ()]
    return f"{min(lengths, default=0)} to {max(lengths, default=0)} tokens", "their text's"


def _count_given(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    return f"{sum(len(record.engine_prompts or ()) for record in records)} prompts", "the trained ids"


def _count_rewards(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    own = [one for record in records for group in record.own_rewards or record.rewards or () for one in group]
    return (f"{min(own):.3g} to {max(own):.3g}" if own else "none"), "numbers"


def _count_advantages(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    found = [one for record in records for one in record.advantages or ()]
    return (f"{min(found):.3g} to {max(found):.3g}" if found else "none"), "the rewards'"


def _count_reached(records: Sequence[RehearsalRecord]) -> tuple[str, str]:
    missing = max((len(record.without_gradient or ()) for record in records), default=0)
    return f"{missing} tensors without", "0"


_COUNTS: dict[str, Callable[[Sequence[RehearsalRecord]], tuple[str, str]]] = {
    "groups": _count_groups,
    "mask": _count_tokens,
    "prompts": _count_prompts,
    "engine's prompts": _count_given,
    "rewards given": _count_rewards,
    "advantages": _count_advantages,
    "gradients": _count_reached,
    "completions": _count_completions,
    "trained tokens": _count_trained,
    "spread of rewards": _count_spread,
    "gradient": _count_norms,
    "update": _count_moved,
    "sync": _count_synced,
}
