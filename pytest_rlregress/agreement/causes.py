"""What the gap between an engine's and a trainer's log-probabilities comes from, as far as a model alone can tell.

Nothing here needs an engine: reported numbers, ids and the trainer's model are enough. Each cause is undone in what the
model computes, and believed where what remains is rounding.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_rlregress.agreement import computations, logprobs
from pytest_rlregress.agreement.computations import Hypothesis, Row, Sampling
from pytest_rlregress.agreement.explanation import Cause, Explanation
from pytest_rlregress.agreement.hypotheses import hypotheses, other_temperature
from pytest_rlregress.agreement.unchanged import unchanged

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Combination = tuple[Hypothesis, ...]  # one a stage at most; none: without a mistake

# The floor is of a few rows and one kernel; vLLM and transformers are 0.8 to 1 floors apart here.
FACTOR = 8
# What one step of float32 is between 1 and 2 nats: no number that is reported can be nearer.
RESOLUTION = 2.0**-23
# What rounded weights change must be found in the numbers by this many standard errors.
CERTAIN = 3


def explain(
    reported: Sequence[Sequence[float]],
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    trainer: Sequence[Sequence[float]] | None = None,
    sampling: Sampling | None = None,
    bos_id: int | None = None,
    pad_id: int | None = None,
) -> Explanation:
    """Say what the gap between reported log-probabilities and a model's own comes from.

    Every hypothesis is one more pass of the model over all rows; a dozen rows tell as much as a thousand. The model is
    evaluated without dropout; its weights, its dtype, the mode of its modules and all random states are left as they
    are. Where its weights are float32 and nothing simpler explains the gap, a copy rounded to bfloat16 is made.

    Args:
        reported: What the engine said of each token of each completion, in nats.
        model: The trainer's causal language model, a PeftModel with its adapter too.
        prompts: The ids that the trainer trains on, without padding; each has one at least.
        completions: The ids that were drawn, without padding.
        trainer: What the trainer itself said of the completions' tokens, if that is what the gap is about. What the
            model computes row by row without padding, at ``sampling.temperature``, decides which side is off.
        sampling: What the completions were drawn with, as far as is known; default temperature 1, nothing cut off.
        bos_id: Default ``model.config.bos_token_id``.
        pad_id: Default ``model.config.pad_token_id``.

    Raises:
        ValueError: Rows differ in number, a completion's numbers in number from its ids, or there is no token at all.
    """
    about = KnownRollouts(model, prompts, completions, sampling or Sampling(), bos_id, pad_id)
    with unchanged(model):
        sides = [about.explain(reported, "the engine")]
        if trainer is None:
            return sides[0]
        sides.append(about.explain(trainer, "the trainer"))
    return together(gap_of(reported, trainer), sides)


def together(gap: float, sides: Sequence[Explanation]) -> Explanation:
    """Explain a gap between two sides, each of which has an explanation of its own."""
    floor = max(side.floor for side in sides)
    if gap <= FACTOR * floor or all(side.agrees for side in sides):
        return Explanation(gap, floor, gap, agrees=True)
    causes = tuple(cause for side in sides for cause in side.causes)
    notes = tuple(note for side in sides for note in side.notes)
    if all(side.explained for side in sides):
        return Explanation(gap, floor, max(side.remaining for side in sides), causes, notes=notes)
    nearest = causes + tuple(cause for side in sides for cause in side.nearest)
    return Explanation(gap, floor, gap, nearest=nearest, notes=notes)


@dataclass(frozen=True)
class KnownRollouts:
    """What both sides speak of: see :func:`explain`. ``floor`` is measured at temperature 1 where it is not given."""

    model: PreTrainedModel
    prompts: Sequence[Sequence[int]]
    completions: Sequence[Sequence[int]]
    sampling: Sampling
    bos_id: int | None = None
    pad_id: int | None = None
    floor: float | None = None

    def explain(self, reported: Sequence[Sequence[float]], who: str) -> Explanation:
        """Explain the numbers of one side; the model is in eval mode."""
        rows = _rows(self.prompts, self.completions, reported)
        if not rows:
            raise ValueError("no token to compare: every completion is empty")
        config = self.model.config
        bos_id = getattr(config, "bos_token_id", None) if self.bos_id is None else self.bos_id
        pad_id = getattr(config, "pad_token_id", None) if self.pad_id is None else self.pad_id
        floor = floor_of(self.model, rows) if self.floor is None else self.floor
        return _Side(who, self.model, rows, self.sampling, self.sampling.scaled(floor)).explain(bos_id, pad_id)


def _rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]]
) -> list[Row]:
    if not len(prompts) == len(completions) == len(numbers):
        raise ValueError(
            f"{len(prompts)} prompts, {len(completions)} completions and {len(numbers)} rows of log-probabilities: "
            "one of each is needed for a row"
        )
    rows = [Row(list(p), list(c), list(n)) for p, c, n in zip(prompts, completions, numbers, strict=True)]
    return [row for row in rows if row.completion]


def floor_of(model: PreTrainedModel, rows: Sequence[Row]) -> float:
    """Return the floor of three rows of up to 64 tokens, at temperature 1; a pass of the model for each token."""
    measured = logprobs.floor(model, [[*row.prompt, *row.completion][:64] for row in rows[:3]])
    return max(measured, RESOLUTION)


def gap_of(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Mean |difference| of the tokens of which ``other`` says something; infinite where that is not half of them."""
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    # What isn't a number on both sides is the same.
    known = [(0.0, 0.0) if not math.isfinite(a) and str(a) == str(b) else (a, b) for a, b in pairs]
    known = [(a, b) for a, b in known if not math.isnan(b)]
    if len(known) * 2 < len(pairs):
        return math.inf
    gap = sum(abs(a - b) for a, b in known) / len(known)
    return math.inf if math.isnan(gap) else gap


@dataclass(frozen=True)
class _Side:
    """The numbers of one side, and the search for what they are."""

    who: str
    model: PreTrainedModel
    rows: list[Row]
    sampling: Sampling
    floor: float
    predicted: dict[Combination, list[list[float]]] = field(default_factory=dict)
    floors: dict[str, float] = field(default_factory=dict)

    def explain(self, bos_id: int | None, pad_id: int | None) -> Explanation:
        gap = self.remaining(())
        if gap <= FACTOR * self.floor:
            return Explanation(gap, self.floor, gap, agrees=True)
        single: list[Combination] = [(one,) for one in hypotheses(self.model, self.rows, self.sampling, bos_id, pad_id)]
        self.compute(single)
        enough = list(filter(self.is_enough, single))
        if not enough and (fitted := other_temperature(self.model, self.rows, self.sampling)):
            self.compute([(fitted,)])
            # A number that was fitted is always a little nearer.
            if self.remaining((fitted,)) <= min(map(self.remaining, single)) / 2:
                single.append((fitted,))
                enough = list(filter(self.is_enough, single[-1:]))
        if not enough:
            pairs: list[Combination] = [
                one + other for one, other in itertools.combinations(single, 2) if one[0].stage != other[0].stage
            ]
            self.compute(pairs)
            enough = sorted(filter(self.is_enough, pairs), key=self.remaining)
        if enough:
            # The part that takes away more comes first.
            ordered = sorted(enough[0], key=lambda one: self.remaining((one,)))
            after = (self.remaining((ordered[0],)), self.remaining(enough[0]))[-len(ordered) :]
            causes = tuple(self.cause(one, rest) for one, rest in zip(ordered, after, strict=True))
            return Explanation(gap, self.floor, after[-1], causes)
        nearest = sorted((one for one in single if self.remaining(one) <= gap / 2), key=self.remaining)
        causes = tuple(self.cause(one[0], self.remaining(one)) for one in nearest)
        return Explanation(gap, self.floor, gap, nearest=causes)

    def compute(self, combinations: Sequence[Combination]) -> None:
        found = computations.predicted(self.model, self.rows, self.sampling.temperature, combinations)
        self.predicted.update(zip(combinations, found, strict=True))

    def remaining(self, combination: Combination) -> float:
        """Return the gap with a combination undone."""
        if combination not in self.predicted:
            self.compute([combination])
        return gap_of([row.reported for row in self.rows], self.predicted[combination])

    def is_enough(self, combination: Combination) -> bool:
        """Return whether nothing but rounding remains."""
        rest = self.remaining(combination)
        if rest <= FACTOR * self.floor:
            return True
        others = tuple(one for one in combination if one.stage != "weights")
        dtypes = [one.name for one in combination if one.stage == "weights"]
        return any(rest <= FACTOR * self.floor_in(dtype) and self.is_rounded(combination, others) for dtype in dtypes)

    def is_rounded(self, rounded: Combination, plain: Combination) -> bool:
        """Return whether the reported numbers show what rounding the weights changes, beside as much noise.

        Least squares: how many times the change is in the difference, and that number's standard error.
        """
        import torch

        reported = [row.reported for row in self.rows]
        numbers = (reported, self.predicted[rounded], self.predicted[plain])
        said, with_it, without = (torch.tensor(list(itertools.chain(*rows)), dtype=torch.float64) for rows in numbers)
        change, difference = with_it - without, said - without
        known = change.isfinite() & difference.isfinite()
        change, difference = change[known], difference[known]
        if len(change) < 8:
            return False
        times = change.dot(difference) / change.dot(change)
        error = (difference - times * change).norm() / (change.norm() * (len(change) - 1) ** 0.5)
        return bool(abs(times - 1) <= 0.5 and times > CERTAIN * error)

    def floor_in(self, dtype: str) -> float:
        """Return the floor of the model computing in a dtype."""
        import torch

        if dtype not in self.floors:
            other = copy.deepcopy(self.model).to(getattr(torch, dtype))
            self.floors[dtype] = self.sampling.scaled(floor_of(other, self.rows))
        return self.floors[dtype]

    def cause(self, one: Hypothesis, rest: float) -> Cause:
        remedy = one.remedy[self.who != "the engine"]
        return Cause(one.name, self.who, one.undone, one.cause.format(who=self.who), remedy, rest)
