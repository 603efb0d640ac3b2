"""The numbers of a run, step by step, and what each trainer calls them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

#: Metric -> the names of trainers for it, the most telling first. The first that a run has is the one that is judged.
#: verl's are those of ``trainer/ppo/metric_utils.py`` and ``rollout_corr_helper.py``, TRL's of ``grpo_trainer.py``.
NAMES: dict[str, tuple[str, ...]] = {
    # verl's score is the judge's, its reward what a KL penalty left of it.
    "reward": ("critic/score/mean", "critic/rewards/mean", "reward"),
    "highest reward": ("critic/score/max", "critic/rewards/max"),
    "lowest reward": ("critic/score/min", "critic/rewards/min"),
    "spread of rewards": ("reward_std",),
    "groups without spread": ("frac_reward_zero_std",),
    "mean advantage": ("critic/advantages/mean",),
    "highest advantage": ("critic/advantages/max",),
    "lowest advantage": ("critic/advantages/min",),
    "aborted": ("response/aborted_ratio",),
    "gradient norm": ("actor/grad_norm", "grad_norm"),
    "entropy": ("actor/entropy", "actor/entropy_loss", "entropy"),
    "clip fraction": ("actor/pg_clipfrac", "clip_ratio/region_mean", "clip_ratio"),
    "cut short": ("response_length/clip_ratio", "completions/clipped_ratio"),
    "shortest completion": ("response_length/min", "completions/min_length"),
    "longest completion": ("response_length/max", "completions/max_length"),
    # Between the engine's log-probabilities and the trainer's. The last names are slime's and those of verl 0.6.
    "gap": (
        "sampling/sampling_logp_difference/mean",
        "training/rollout_probs_diff_mean",
        "rollout_corr/log_ppl_abs_diff",
        "rollout_corr/k3_kl",
        "train_rollout_logprob_abs_diff",
        "mismatch/mismatch_log_ppl_abs_diff",
        "mismatch/mismatch_k3_kl",
    ),
}
#: From what mean on a gap is more than rounding in bfloat16. Sound runs have some 0.01 nats a token, 0.004 of
#: probability, 0.001 of KL; where the sign of a token's difference does not matter, as in a sequence's mean, less.
LARGE_GAP = {
    "sampling/sampling_logp_difference/mean": 0.05,
    "train_rollout_logprob_abs_diff": 0.05,
    "training/rollout_probs_diff_mean": 0.03,
    "rollout_corr/log_ppl_abs_diff": 0.03,
    "mismatch/mismatch_log_ppl_abs_diff": 0.03,
    "rollout_corr/k3_kl": 0.02,
    "mismatch/mismatch_k3_kl": 0.02,
}
#: Names of TRL's, whose step is one update: at step 1 the policy is still the one that sampled.
UPDATES_ONCE_A_STEP = ("clip_ratio/region_mean", "clip_ratio")
#: Where wandb and TensorBoard have a step, the trainer's before the logger's.
STEPS = ("global_step", "training/global_step", "step", "_step")

_KNOWN = {name for names in NAMES.values() for name in names}
#: How many steps are kept of a log, in a few MB: no run of a trainer for LLMs has logged as many.
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Series:
    """A metric, step by step.

    Attributes:
        name: As trainers print it.
        steps: In the order of the log.
        values: NaN where it was logged as no number.
    """

    name: str
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        """Return how many steps it has."""
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Iterate over pairs of step and value."""
        return zip(self.steps, self.values, strict=True)

    def add(self, step: int, value: float) -> None:
        """Append a value; the second of one step is passed over."""
        if not len(self) or self.steps[-1] != step:
            self.steps.append(step)
            self.values.append(value)

    def where(self, test: Callable[[int, float], bool]) -> Series:
        """Return the part of it whose step and value pass a test."""
        kept = [(step, value) for step, value in self if test(step, value)]
        return Series(self.name, array("q", (step for step, _ in kept)), array("d", (value for _, value in kept)))

    def numbers(self) -> Series:
        """Return it without what isn't a number: a metric that was not defined at a step."""
        return self.where(lambda _, value: math.isfinite(value))

    def after(self, step: int) -> Series:
        """Return what follows a step."""
        return self.where(lambda at, _: at > step)

    def at_least(self, value: float) -> Series:
        """Return the part of it that is a value or more."""
        return self.where(lambda _, one: one >= value)

    def all(self, test: Callable[[float], bool]) -> bool:
        """Return whether there are values, and all pass a test."""
        return len(self) > 0 and all(map(test, self.values))

    def constant(self) -> bool:
        """Return whether there are values, and all are the same."""
        return len(set(self.values)) == 1


@dataclass
class Run:
    """What a log has of a run.

    Attributes:
        log: Its name.
        numbered: Whether the trainer wrote the steps' numbers; else they are counted as they come.
        settings: Numbers of the trainer's configuration that it printed, by key: several where several parts of it have
            the key.
        steps: How many were read.
    """

    log: str
    numbered: bool = True
    settings: dict[str, set[float]] = field(default_factory=dict)
    steps: int = 0
    first: int = 0
    last: int = 0
    _series: dict[str, Series] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether it takes no more steps."""
        return self.steps >= MOST_STEPS

    def add(self, step: int | None, values: Mapping[str, float]) -> None:
        """Add what was logged at a step, under the names that ``names.known`` gives."""
        if not self.steps:
            self.numbered = step is not None
        elif self.numbered != (step is not None):  # of another writer: the two would mix
            return
        if step is None:
            step = self.last + 1
        if not self.steps:
            self.first = step
        if step != self.last or not self.steps:
            if self.full:
                return
            self.steps += 1
        self.last = step
        for name, value in values.items():
            self._series.setdefault(name, Series(name)).add(step, value)

    def get(self, metric: str) -> Series:
        """Return a metric's series, empty where the run has none."""
        return next((self._series[name] for name in NAMES[metric] if name in self._series), Series(metric))

    def named(self, name: str) -> Series:
        """Return the series of a name, empty where the run has none."""
        return self._series.get(name, Series(name))


def known(printed: str) -> str | None:
    """Return a metric's name without the ``train/`` that transformers puts before it, if it is one that is judged."""
    name = printed.removeprefix("train/")
    return name if name in _KNOWN else None
