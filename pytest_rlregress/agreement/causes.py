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
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_rlregress.agreement import computations, logprobs
from pytest_rlregress.agreement.computations import Hypothesis, Row, Sampling
from pytest_rlregress.agreement.hypotheses import hypotheses, other_temperature

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Combination = tuple[Hypothesis, ...]  # one a stage at most; none: without a mistake

# Two kernels are further apart than the floor's two ways through one: vLLM and transformers up to 3 times here.
FACTOR = 8
# What one step of float32 is between 1 and 2 nats: no number that is reported can be nearer.
RESOLUTION = 2.0**-23
# What rounded weights change must be found in the numbers by this many standard errors.
CERTAIN = 3


def nats(number: float) -> str:
    """A number of nats as text: two digits, ``3e-7``."""
    return f"{number:.2g}".replace("e-0", "e-")


@dataclass(frozen=True)
class Cause:
    """One cause of a gap.

    Attributes:
        name: Its name, as in docs/agreement.md: ``before-temperature``.
        who: Whose numbers it concerns: "the engine" or "the trainer".
        undone: What was changed to test it.
        sentence: What is the matter.
        remedy: What to do about it.
        remaining: Gap in nats a token with this and the causes before it undone.
    """

    name: str
    who: str
    undone: str
    sentence: str
    remedy: str
    remaining: float

    def __str__(self) -> str:
        """What was undone, what remained, what is the matter."""
        return f"{self.undone}, {nats(self.remaining)}: {self.sentence} ({self.remedy})"


@dataclass(frozen=True)
class Explanation:
    """How far apart two sides are, and why. ``str()`` of it is the answer as a sentence.

    Attributes:
        gap: Mean |difference of log-probability| in nats a token.
        floor: The same for two computations that are equal but for rounding: what agreement can be had.
        remaining: What is left of the gap with all ``causes`` undone.
        causes: What explains the gap, the larger part first. Empty where the sides agree, or nothing explains it.
        nearest: Where nothing explains it, what takes away at least half of it, the best first.
        agrees: The gap is rounding.
    """

    gap: float
    floor: float
    remaining: float
    causes: tuple[Cause, ...] = ()
    nearest: tuple[Cause, ...] = ()
    agrees: bool = False

    @property
    def explained(self) -> bool:
        """Whether the causes leave nothing but rounding; True where the sides agree, too."""
        return self.agrees or bool(self.causes)

    @property
    def names(self) -> list[str]:
        """The names of the causes."""
        return [cause.name for cause in self.causes]

    def __str__(self) -> str:
        """The gap and what explains it, or what comes nearest."""
        if self.agrees:
            return f"agrees: {nats(self.gap)} nats a token, rounding alone makes {nats(self.floor)}"
        if self.causes:
            return f"{nats(self.gap)} nats a token; " + "; ".join(map(str, self.causes))
        text = f"{nats(self.gap)} nats a token, where rounding alone makes {nats(self.floor)}: unexplained"
        return text + "".join(f"; nearest: {cause}" for cause in self.nearest[:1])


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
    sides = {"the engine": _rows(prompts, completions, reported)}
    if trainer is not None:
        sides["the trainer"] = _rows(prompts, completions, trainer)
    if not any(row.completion for row in sides["the engine"]):
        raise ValueError("no token to compare: every completion is empty")
    sampling = sampling or Sampling()
    bos_id = getattr(model.config, "bos_token_id", None) if bos_id is None else bos_id
    pad_id = getattr(model.config, "pad_token_id", None) if pad_id is None else pad_id
    floor = _floor(model, sides["the engine"], sampling)
    found = [_Side(who, model, _with_tokens(rows), sampling, floor) for who, rows in sides.items()]
    explained = [side.explain(bos_id, pad_id) for side in found]
    if trainer is None:
        return explained[0]
    gap = _gap(reported, trainer)
    off = [one for one in explained if not one.agrees]
    if gap <= FACTOR * floor:
        return Explanation(gap, floor, gap, agrees=True)
    causes = tuple(itertools.chain.from_iterable(one.causes for one in off)) if all(o.causes for o in off) else ()
    nearest = tuple(itertools.chain.from_iterable((*one.causes, *one.nearest) for one in off)) if not causes else ()
    return Explanation(gap, floor, max(one.remaining for one in explained), causes, nearest)


def _rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]]
) -> list[Row]:
    if not len(prompts) == len(completions) == len(numbers):
        raise ValueError(
            f"{len(prompts)} prompts, {len(completions)} completions and {len(numbers)} rows of log-probabilities: "
            "one of each is needed for a row"
        )
    return [Row(list(p), list(c), list(n)) for p, c, n in zip(prompts, completions, numbers, strict=True)]


def _with_tokens(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.completion]


def _floor(model: PreTrainedModel, rows: Sequence[Row], sampling: Sampling) -> float:
    """The floor of four rows of up to 128 tokens, at the temperature: that divides differences of logits too."""
    sequences = [[*row.prompt, *row.completion][:128] for row in _with_tokens(rows)[:4]]
    with computations.evaluating(model):
        measured = logprobs.floor(model, sequences)
    return max(measured, RESOLUTION) * max(1.0, 1 / (sampling.temperature or 1.0))


def _gap(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Mean |difference| of the tokens of which ``other`` says something; infinite where that is not half of them."""
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    # What is no number on both sides is the same.
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
        """The gap with a combination undone."""
        if combination not in self.predicted:
            self.compute([combination])
        return _gap([row.reported for row in self.rows], self.predicted[combination])

    def is_enough(self, combination: Combination) -> bool:
        """Whether nothing but rounding remains."""
        rest = self.remaining(combination)
        if rest <= FACTOR * self.floor:
            return True
        others = tuple(one for one in combination if one.stage != "weights")
        return others != combination and rest <= FACTOR * self.bfloat16_floor and self.is_rounded(combination, others)

    def is_rounded(self, rounded: Combination, plain: Combination) -> bool:
        """Whether what rounding the weights changes is in the reported numbers, beside as much noise of computing.

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

    @cached_property
    def bfloat16_floor(self) -> float:
        import torch

        return _floor(copy.deepcopy(self.model).to(torch.bfloat16), self.rows, self.sampling)

    def cause(self, one: Hypothesis, rest: float) -> Cause:
        remedy = one.remedy[self.who != "the engine"]
        return Cause(one.name, self.who, one.undone, one.cause.format(who=self.who), remedy, rest)
