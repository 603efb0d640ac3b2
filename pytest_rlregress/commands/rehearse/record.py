"""The record of one step of a rehearsed run: a ``StepRecord`` with what a user's own run shows beside it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pytest_rlregress.commands.rehearse.properties import PROPERTIES, SAME
from pytest_rlregress.fixtures.step_properties import Property
from pytest_rlregress.fixtures.step_record import Ids, StepRecord


@dataclass(frozen=True, kw_only=True)
class RehearsalRecord(StepRecord):
    """What one step of a user's run did.

    Attributes:
        stubbed: The reward functions gave equal rewards in every group, and 0 and 1 in turn took their place.
        own_rewards: What the reward functions gave, by group.
        reward_difference: Largest |difference| of what the functions gave and what the trainer used.
        group_size: Completions of a prompt.
        group_rows: A digest of the row that each completion is of.
        engine_prompts: The ids that the engine was given; ``engine_completions`` the ids that it drew.
        wanted: The advantages that the rewards make.
        gap: Mean |difference| of engine's and trainer's log-probabilities in nats a token; ``floor`` that of rounding;
            ``cause`` what explains it.
        cached_gap: The same behind a long prompt that the engine was asked for after the sync before.
        logprobs: Of each completion's tokens, the engine's and the trainer's.
        ratio_difference: Largest |new - old log-probability| before the update on these completions; the mean in a real
            run that computes in 16 bits.
        reference_difference: The same of the reference model in the first step.
        same: How large both may be, in nats.
        second_pass: Largest |difference| of two passes of the same batch.
        dropouts: What drops something in the model while it is trained, with the share.
        split_difference: Of the gradient of a micro batch and that of its two halves, relative to the gradient.
        masked_difference: Of the gradient with other ids where the mask is 0.
        direction: Cosine of the gradient and the closed form's.
        learning_rate: Of this step.
        pieces: The first three completions as texts, one a token.
        lengths: How many tokens of each completion are trained on.
        truncated_masked: Whether completions that were cut off are left out of the loss on purpose.
    """

    properties: ClassVar[Mapping[str, tuple[tuple[str, ...], Property]]] = PROPERTIES
    stubbed: bool = False
    own_rewards: tuple[tuple[float, ...], ...] | None = None
    reward_difference: float | None = None
    group_size: int | None = None
    group_rows: tuple[str, ...] | None = None
    engine_prompts: tuple[Ids, ...] | None = None
    engine_completions: tuple[Ids, ...] | None = None
    wanted: tuple[float, ...] | None = None
    gap: float | None = None
    floor: float | None = None
    cause: str = ""
    cached_gap: float | None = None
    logprobs: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] | None = None
    ratio_difference: float | None = None
    reference_difference: float | None = None
    same: float = SAME
    second_pass: float | None = None
    dropouts: tuple[str, ...] = ()
    split_difference: float | None = None
    masked_difference: float | None = None
    direction: float | None = None
    learning_rate: float | None = None
    pieces: tuple[tuple[str, ...], ...] | None = None
    lengths: tuple[int, ...] | None = None
    truncated_masked: bool = False


def to_plain(record: RehearsalRecord) -> dict[str, Any]:
    """Return a record as values that JSON has."""
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    return {**values, "ending_ids": sorted(record.ending_ids or ())}


def from_plain(values: Mapping[str, Any]) -> RehearsalRecord:
    """Return the record that ``to_plain`` made these values of."""
    known = {one.name for one in fields(RehearsalRecord)}
    given = {name: _to_tuples(value) for name, value in values.items() if name in known}
    return RehearsalRecord(**{**given, "ending_ids": frozenset(values["ending_ids"])})


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


def make_advantages(rewards: Sequence[Sequence[float]], scale: str, epsilon: float) -> list[float]:
    """Return the advantages that GRPO makes of rewards by group; 0 where a completion has none.

    ``scale`` is what the centred rewards are divided by: the deviation of the "group" or the "batch", or "none".
    """
    every = [one for group in rewards for one in group if math.isfinite(one)]
    found = []
    for group in rewards:
        known = [one for one in group if math.isfinite(one)]
        of = {"group": known, "batch": every}.get(scale, [])
        spread = statistics.stdev(of) + epsilon if len(of) > 1 else 1.0
        mean = statistics.fmean(known) if known else 0.0
        found += [(one - mean) / spread if math.isfinite(one) else 0.0 for one in group]
    return found
