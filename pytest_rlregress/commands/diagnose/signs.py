"""Find signs of failures in the metrics of runs. ``signs.toml`` says what each means and what would confirm it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from pytest_rlregress.commands.diagnose.metrics import Run, Series

#: Of each sign the failures that it is one of (``ids``), what it ``means``, and what would ``confirm`` it.
TEXTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("signs.toml").read_text(encoding="utf-8"))

# From how many steps on "at all steps" is no chance of the first batches.
_ALWAYS = 10
# How many steps in a row with a gradient that isn't finite are more than float16's scaler looking for its scale.
_NO_NUMBER = 3
# How many steps after such a gradient show what became of the policy.
_COLLAPSED = 2
# From what mean on a gap is more than rounding in bfloat16. Sound runs have some 0.01 nats a token, 0.004 of
# probability, 0.001 of KL; where the sign of a token's difference does not matter, as in a sequence's mean, less.
_LARGE_GAP = {
    "sampling/sampling_logp_difference/mean": 0.05,
    "train_rollout_logprob_abs_diff": 0.05,
    "training/rollout_probs_diff_mean": 0.03,
    "rollout_corr/log_ppl_abs_diff": 0.03,
    "mismatch/mismatch_log_ppl_abs_diff": 0.03,
    "rollout_corr/k3_kl": 0.02,
    "mismatch/mismatch_k3_kl": 0.02,
}
# A gap at the first step up to here is of two that compute alike, in float32: later ones should be as small, and are
# not from the second number on. A first gap of 0 tells nothing: older trainers print three decimals.
_ALIKE, _APART = 1e-5, 1e-3
# How many times its first value a gap has grown, and how many steps behind the first show it.
_GROWN, _FEW = 5, 3
# Which part of tokens is clipped on the policy that sampled them by more than rounding.
_CLIPPED = 0.01
# Gaps of one token, in nats: how far a token's ratio may be from 1.
_PER_TOKEN = ("sampling/sampling_logp_difference/mean", "train_rollout_logprob_abs_diff")
# From which logarithm on the mean ratio is off by more than a token's rounding: 0.9 or 1.1.
_RATIO_OFF = 0.1
# From which divergence on a policy is not the one that it is compared with.
_DIVERGED = 0.01
# Names of TRL's, whose step is one update: at step 1 the policy is still the one that sampled.
_UPDATES_ONCE_A_STEP = ("clip_ratio/region_mean", "clip_ratio")
_SHOWN = 10


@dataclass(frozen=True)
class MetricFinding:
    """A sign of documented failures in the metrics of a run.

    Attributes:
        sign: What ``signs.toml`` calls it.
        what: The numbers, in a sentence.
        series: The numbers that it stands on.
        is_certain: Whether nothing else is known to give them.
        log: Where they are.
    """

    sign: str
    what: str
    series: Series
    is_certain: bool = False
    log: str = ""

    def shown(self) -> list[tuple[int, float]]:
        """Return the steps and their values, of many the first and the last."""
        pairs = list(self.series.by_step.items())
        return pairs if len(pairs) <= 2 * _SHOWN else [*pairs[:_SHOWN], *pairs[-_SHOWN:]]


def find(runs: Sequence[Run]) -> list[MetricFinding]:
    """Return the signs in runs, each in a log of its own, the certain ones first.

    A sign that several logs show in the same words, as a console's and TensorBoard's of one run, is one.
    """
    found: dict[tuple[str, str], MetricFinding] = {}
    for run in runs:
        for one in (one for sign in _SIGNS for one in sign(run)):
            before = found.get((one.sign, one.what))
            found[one.sign, one.what] = replace(one, log=f"{before.log}, {run.log}" if before else run.log)
    return sorted(found.values(), key=lambda one: not one.is_certain)


def _find_reward_not_a_number(run: Run) -> Iterator[MetricFinding]:
    """Find a reward that was no number, and the advantages with it."""
    reward, advantage, aborted = (run.get(name) for name in ("reward", "mean advantage", "aborted"))
    both = reward.where(
        lambda step, value: (
            math.isnan(value)
            and math.isnan(advantage.by_step.get(step, 0))
            and aborted.by_step.get(step) != 1  # where all were, neither is defined
        )
    )
    if both and reward.numbers() and advantage.numbers():
        what = f"{both.name} and {advantage.name} aren't numbers at {_steps_of(both)}"
        yield MetricFinding("reward that isn't a number", what, both, is_certain=True)


def _find_gradient_not_a_number(run: Run) -> Iterator[MetricFinding]:
    """Find that the gradient's norm became NaN or infinite, and stayed so."""
    norm, entropy = run.get("gradient norm"), run.get("entropy")
    sound = norm.numbers()
    rest = norm.after(sound.steps[-1]) if sound else norm
    if not rest:
        return
    begun = rest.steps[0]
    collapse = _collapse(run, begun)
    lost = entropy.where(lambda step, value: math.isnan(value) and step in rest.by_step)
    if collapse or lost or (len(rest) >= _NO_NUMBER and sound):
        what = f"{norm.name} is not finite from step {begun} to {rest.steps[-1]}"
        what += f", with {entropy.name}: the policy's own output isn't a number" if lost else ""
        what += f", and then {collapse}" if collapse else ""
        yield MetricFinding("gradient that is not finite", what, rest, is_certain=bool(collapse))


def _collapse(run: Run, begun: int) -> str:
    """Say how completions were all the same after a step, and were not before; "" where nothing shows it."""
    for low, high in [("shortest completion", "longest completion"), ("lowest reward", "highest reward")]:
        lowest, highest = run.get(low).numbers(), run.get(high).numbers()
        equal = dict(lowest.by_step.items() & highest.by_step.items())
        if _only_after(begun, lowest, equal):
            return f"{lowest.name} and {highest.name} are the same, {format_value(lowest.after(begun).values[0])}"
    spread = run.get("spread of rewards").numbers()
    if _only_after(begun, spread, spread.where(lambda _, value: value == 0).by_step):
        return f"{spread.name} is 0"
    return ""


def _only_after(begun: int, series: Series, steps: dict[int, float]) -> bool:
    """Return whether all of a series' steps after one are among some, and not all before it."""
    after, before = series.after(begun).by_step, series.where(lambda step, _: step < begun).by_step
    return len(after) >= _COLLAPSED and after.keys() <= steps.keys() and not before.keys() <= steps.keys()


def _find_growing_gap(run: Run) -> Iterator[MetricFinding]:
    """Find that engine and trainer agree at first, and do not later."""
    for gap in run.gaps():
        start, first = gap.steps[0], gap.values[0]
        alike = 0 < first <= _ALIKE
        apart = max(_APART if alike else _LARGE_GAP[gap.name], _GROWN * first)
        off = gap.after(start).where(lambda _, value, apart=apart: value >= apart)  # type: ignore[misc]  # bound now
        # In bfloat16 single steps may be far off in a sound run; in float32 none is.
        if len(off) >= _FEW and (alike or median(gap.values[-max(_FEW, len(gap) // 3) :]) >= apart):
            what = f"{gap.name} is {format_value(first)} at step {start}, "
            what += f"up to {format_value(max(off.values))} at {_steps_of(off)}"
            yield MetricFinding("growing gap", what, gap)
            return


def _find_constant_gap(run: Run) -> Iterator[MetricFinding]:
    """Find that engine and trainer disagree from the first step on, before any update."""
    for gap in run.gaps():
        first, middle = gap.values[0], median(gap.values)
        if len(gap) > _FEW and min(first, middle) >= _LARGE_GAP[gap.name] and middle < _GROWN * first:
            low, high = format_value(min(gap.values)), format_value(max(gap.values))
            what = f"{gap.name} is {low} to {high} at all {_steps_of(gap)}"
            yield MetricFinding("gap from the first step", what, gap)
            return


def _find_shifted_ratio(run: Run) -> Iterator[MetricFinding]:
    """Find that the mean importance ratio is far from 1, though the engine and the trainer agree token by token."""
    ratio = run.get("importance ratio").numbers()
    gaps = [gap for gap in run.gaps() if gap.name in _PER_TOKEN]
    if len(ratio) < _FEW or not gaps or abs(math.log(max(median(ratio.values), 1e-9))) < _RATIO_OFF:
        return
    gap = gaps[0]
    if median(gap.values) < _LARGE_GAP[gap.name]:
        what = f"{ratio.name} is {_range(ratio)} at {_steps_of(ratio)}, and {gap.name} no more than "
        what += format_value(max(gap.values))
        yield MetricFinding("importance ratio far from 1", what, ratio)


def _find_divergence_on_policy(run: Run) -> Iterator[MetricFinding]:
    """Find a divergence before any update: of the policy from itself, or from the reference that it still is."""
    divergence = run.get("policy's own divergence").numbers()
    if not divergence or not run.numbered or divergence.steps[0] != 1:
        return
    if divergence.name != "kl" and not _is_one_update(run):
        return
    if abs(divergence.values[0]) >= _DIVERGED:
        what = f"{divergence.name} is {format_value(divergence.values[0])} at step 1, before any update"
        first = divergence.where(lambda step, _: step == 1)
        yield MetricFinding("divergence before any update", what, first)


def _is_one_update(run: Run) -> bool:
    """Return whether a step of verl's is one update, as far as its settings are printed."""
    sizes = [run.settings.get(key, set()) for key in ("train_batch_size", "ppo_mini_batch_size")]
    return len(sizes[0]) == 1 and sizes[0] == sizes[1] and run.settings.get("ppo_epochs") == {1}


def _find_clipped_at_once(run: Run) -> Iterator[MetricFinding]:
    """Find that ratios were clipped in the first update, when the policy was still the one that sampled."""
    clipped = run.get("clip fraction").numbers()
    if not clipped or clipped.values[0] < _CLIPPED:
        return
    first = clipped.steps[0]
    by_number = run.numbered and first == 1  # a later one would be a mean over several
    on_policy = by_number if clipped.name in _UPDATES_ONCE_A_STEP else _is_one_update(run)
    if on_policy:
        what = f"{clipped.name} is {format_value(clipped.values[0])} at step {first}, before any update"
        yield MetricFinding("clipped on the policy that sampled", what, clipped.where(lambda step, _: step == first))


def _find_rewards_without_spread(run: Run) -> Iterator[MetricFinding]:
    """Find that every completion was given the same reward: 0, as where the judge fails, or another one."""
    reward = run.get("reward").numbers()
    if len(reward) < _ALWAYS:
        return
    spreads = [run.get(name).numbers() for name in ("spread of rewards", "highest reward", "lowest reward")]
    if reward.is_always(0):
        if all(one.is_always(0) for one in spreads if one):
            yield MetricFinding("reward of 0", f"{reward.name} is 0 at all {_steps_of(reward)}", reward)
    elif _is_the_same_for_all(run):
        what = f"{reward.name} is {format_value(reward.values[0])} at all {_steps_of(reward)}, without spread"
        yield MetricFinding("equal rewards", what, reward)


def _is_the_same_for_all(run: Run) -> bool:
    """Return whether one reward is that of all completions, as far as the run says; not where it says nothing."""
    reward, spread = run.get("reward").numbers(), run.get("spread of rewards").numbers()
    highest, lowest = run.get("highest reward").numbers(), run.get("lowest reward").numbers()
    flat = spread.is_always(0) if spread else len(highest) > 0 and highest.values == lowest.values
    return flat and len(set(reward.values)) == 1


def _find_equal_groups(run: Run) -> Iterator[MetricFinding]:
    """Find that rewards differ from prompt to prompt, and never within a prompt's group."""
    reward, groups = run.get("reward").numbers(), run.get("groups without spread").numbers()
    if groups:
        sign, none, value = "no spread in any group", groups.is_always(1), 1
    else:
        groups, lowest = (run.get(f"{end} advantage").numbers() for end in ("highest", "lowest"))
        sign, none, value = "advantages of 0", groups.is_always(0) and lowest.is_always(0), 0
    if none and len(groups) >= _ALWAYS and reward and not _is_the_same_for_all(run):
        what = f"{groups.name} is {value} at all {_steps_of(groups)}, and {reward.name} differs ({_range(reward)})"
        yield MetricFinding(sign, what, groups)


def _find_raw_reward_as_advantage(run: Run) -> Iterator[MetricFinding]:
    """Find that advantages are the rewards themselves: nothing was compared within groups."""
    highest, lowest = (run.get(f"{end} advantage").numbers() for end in ("highest", "lowest"))
    most, least = (run.get(f"{end} reward").numbers() for end in ("highest", "lowest"))
    if _is_same(highest, most) and _is_same(lowest, least) and highest.values != lowest.values:
        of = most.name.rpartition("/")[0]
        what = f"{highest.name} and {lowest.name} are those of {of} at all {_steps_of(highest)}"
        yield MetricFinding("advantage = reward", what, highest)


def _is_same(advantage: Series, reward: Series) -> bool:
    if len(advantage) < _ALWAYS or advantage.steps != reward.steps:
        return False
    pairs = zip(advantage.values, reward.values, strict=True)
    return all(math.isclose(a, r, rel_tol=1e-4, abs_tol=1e-6) for a, r in pairs)


def _find_cut_short(run: Run) -> Iterator[MetricFinding]:
    """Find that every completion was held for cut off at the limit, at every step."""
    cut = run.get("cut short").numbers()
    if len(cut) < _ALWAYS or not cut.is_always(1):
        return
    what = f"{cut.name} is 1 at all {_steps_of(cut)}"
    shortest, longest = run.get("shortest completion").numbers(), run.get("longest completion").numbers()
    if shortest.steps == longest.steps and sum(a < b for a, b in zip(shortest.values, longest.values, strict=True)) > 1:
        what += f", {shortest.name} {_range(shortest)}, {longest.name} {_range(longest)}"
        yield MetricFinding("all cut short, of several lengths", what, cut)
    else:
        yield MetricFinding("all at the limit", what, cut)


def _find_no_tool_calls(run: Run) -> Iterator[MetricFinding]:
    """Find that no completion of a run with tools ever called one."""
    calls = run.get("tool calls").numbers()
    if len(calls) >= _ALWAYS and calls.is_always(0):
        yield MetricFinding("no tool call", f"{calls.name} is 0 at all {_steps_of(calls)}", calls)


def _steps_of(series: Series) -> str:
    if len(series) == 1:
        return f"step {series.steps[0]}"
    return f"{len(series)} steps ({min(series.steps)} to {max(series.steps)})"


def _range(series: Series) -> str:
    low, high = (format_value(end(series.values)) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def format_value(value: float) -> str:
    """Write a value with three digits."""
    return f"{value:.3g}"


_SIGNS: tuple[Callable[[Run], Iterator[MetricFinding]], ...] = (
    _find_reward_not_a_number,
    _find_gradient_not_a_number,
    _find_growing_gap,
    _find_constant_gap,
    _find_shifted_ratio,
    _find_divergence_on_policy,
    _find_clipped_at_once,
    _find_rewards_without_spread,
    _find_equal_groups,
    _find_raw_reward_as_advantage,
    _find_cut_short,
    _find_no_tool_calls,
)
