"""All signs of failures that are looked for in the metrics of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_rlregress.diagnose.metrics import policy_signs, reward_signs
from pytest_rlregress.diagnose.metrics.evidence import MetricFinding
from pytest_rlregress.diagnose.metrics.series import Run

SIGNS: tuple[Callable[[Run], MetricFinding | None], ...] = (
    reward_signs.reward_not_a_number,
    reward_signs.gradient_not_a_number,
    policy_signs.growing_gap,
    policy_signs.constant_gap,
    policy_signs.clipped_at_once,
    reward_signs.zero_reward,
    reward_signs.equal_rewards,
    reward_signs.equal_groups,
    reward_signs.raw_reward_as_advantage,
    reward_signs.cut_short,
)


def find(runs: Sequence[Run]) -> list[MetricFinding]:
    """Return what the signs say of runs, each in a log of its own; logs that go on with the one before are one run."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].goes_on(run):
            joined[-1] = joined[-1].joined(run)
        elif run.steps:
            joined.append(run)
    found = [replace(one, log=run.log) for run in joined for sign in SIGNS if (one := sign(run))]
    return sorted(found, key=lambda one: one.confidence != "certain")
