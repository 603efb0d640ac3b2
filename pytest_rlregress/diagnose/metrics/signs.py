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
    """Return what the signs say of runs, each in a log of its own; logs that go on with the one before are one run.

    What several logs say in the same words, as a console's and TensorBoard's of one run, is said once.
    """
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].goes_on(run):
            joined[-1] = joined[-1].joined(run)
        elif run.steps:
            joined.append(run)
    found: dict[tuple[str, str], MetricFinding] = {}
    for run in joined:
        for one in filter(None, (sign(run) for sign in SIGNS)):
            before = found.get((one.sign, one.what))
            found[one.sign, one.what] = replace(one, log=f"{before.log}, {run.log}" if before else run.log)
    return sorted(found.values(), key=lambda one: one.confidence != "certain")
