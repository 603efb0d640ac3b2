"""Find signs of failures in the metrics of runs. ``signs.toml`` says what each means and what would confirm it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from pytest_rlregress.commands.diagnose.metrics.series import LARGE_GAP, NAMES, UPDATES_ONCE_A_STEP, Run, Series

#: From how many steps on "at all steps" is no chance of the first batches.
ALWAYS = 10
#: How many steps in a row without a number for a gradient aren't scaler of float16 that looks for its scale.
NO_NUMBER = 3
#: How many steps after a gradient that isn't a number show what became of the policy.
COLLAPSED = 2
#: A gap at the first step up to here is of two that compute alike, in float32: later ones should be as small. A 0 is
#: none: older trainers print three decimals.
ALIKE = 1e-5
#: What is no rounding between such two, in the gap's unit.
APART = 1e-3
#: How many times its first value a gap has grown.
GROWN = 5
#: How many steps behind the first show what a gap does.
FEW = 3
#: Which part of tokens is clipped on the policy that sampled them by more than rounding.
CLIPPED = 0.01
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

    @property
    def text(self) -> dict[str, Any]:
        """The failures that it is a sign of (``ids``), what it ``means``, and what would ``confirm`` it."""
        return _texts()[self.sign]

    @property
    def confidence(self) -> str:
        """``certain`` or ``possible``."""
        return "certain" if self.is_certain else "possible"

    def shown(self) -> list[tuple[int, float]]:
        """Return the steps and their values, of many the first and the last."""
        pairs = list(self.series)
        return pairs if len(pairs) <= 2 * _SHOWN else [*pairs[:_SHOWN], *pairs[-_SHOWN:]]


@cache
def _texts() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("signs.toml").read_text(encoding="utf-8"))


def number(value: float) -> str:
    """Return a value as it is shown: three digits."""
    return f"{value:.3g}"


def find(runs: Sequence[Run]) -> list[MetricFinding]:
    """Return what the signs say of runs, each in a log of its own.

    What several logs say in the same words, as a console's and TensorBoard's of one run, is said once.
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
    lost = dict(advantage.where(lambda _, value: math.isnan(value)))
    nothing = {step for step, ratio in aborted if ratio == 1}  # then neither is defined
    both = reward.where(lambda step, value: math.isnan(value) and step in lost and step not in nothing)
    if len(both) and len(reward.numbers()) and len(advantage.numbers()):
        what = f"{both.name} and {advantage.name} aren't numbers at {_steps_of(both)}"
        yield MetricFinding("reward that isn't a number", what, both, is_certain=True)


def _find_gradient_not_a_number(run: Run) -> Iterator[MetricFinding]:
    """Find that the gradient's norm became NaN or infinite, and stayed so."""
    norm = run.get("gradient norm")
    bad = norm.where(lambda _, value: not math.isfinite(value))
    if not len(bad):
        return
    # The last run of steps without a number, up to the end.
    sound = norm.numbers()
    rest = bad.after(sound.steps[-1] if len(sound) else bad.steps[0] - 1)
    if not len(rest):
        return
    begun = rest.steps[0]
    collapse = _collapse(run, begun)
    steps, entropy = set(rest.steps), run.get("entropy")
    lost = len(entropy.where(lambda step, value: math.isnan(value) and step in steps))
    if collapse or lost or (len(rest) >= NO_NUMBER and len(sound)):
        what = f"{norm.name} is not finite from step {begun} to {rest.steps[-1]}"
        what += f", with {entropy.name}: the policy's own output isn't a number" if lost else ""
        what += f", and then {collapse}" if collapse else ""
        yield MetricFinding("gradient that is not finite", what, rest, is_certain=bool(collapse))


def _collapse(run: Run, begun: int) -> str:
    """Say what shows that completions were all the same after a step, and were not before; nothing where none does."""
    for low, high in [("shortest completion", "longest completion"), ("lowest reward", "highest reward")]:
        lowest, highest = run.get(low).numbers(), run.get(high).numbers()
        equal = set(dict(lowest).items() & dict(highest).items())
        if _only_after(begun, lowest, {step for step, _ in equal}):
            value = number(lowest.after(begun).values[0])
            return f"{lowest.name} and {highest.name} are the same, {value}"
    spread = run.get("spread of rewards").numbers()
    if _only_after(begun, spread, {step for step, value in spread if value == 0}):
        return f"{spread.name} is 0"
    return ""


def _only_after(begun: int, series: Series, steps: set[int]) -> bool:
    """Return whether all of a series' steps after one are among some, and not all before it."""
    after, before = series.after(begun), series.where(lambda step, _: step < begun)
    return len(after) >= COLLAPSED and steps.issuperset(after.steps) and not steps.issuperset(before.steps)


def _find_growing_gap(run: Run) -> Iterator[MetricFinding]:
    """Find that engine and trainer agree at first, and do not later."""
    for gap in _gaps(run):
        first, later = gap.values[0], gap.after(gap.steps[0])
        alike = 0 < first <= ALIKE
        apart = max(APART if alike else LARGE_GAP[gap.name], GROWN * first)
        off = later.at_least(apart)
        lately = median(gap.values[-max(FEW, len(gap) // 3) :])
        if len(off) < FEW or not (alike or lately >= apart):
            continue
        what = f"{gap.name} is {number(first)} at step {gap.steps[0]}, "
        what += f"up to {number(max(off.values))} at {_steps_of(off)}"
        # In bfloat16 single steps may be far off in a sound run; in float32 none is.
        if alike and (back := _back(gap, apart)):
            what += f"; {number(gap.values[back])} at step {gap.steps[back]}"
            yield MetricFinding("gap that comes and goes", what, gap)
        else:
            yield MetricFinding("growing gap", what, gap)
        return


def _back(gap: Series, apart: float) -> int:
    """Return where a gap that was large is small again a step later, 0 for nowhere."""
    places = range(1, len(gap))
    return next((at for at in places if gap.values[at] * GROWN <= apart <= gap.values[at - 1]), 0)


def _find_constant_gap(run: Run) -> Iterator[MetricFinding]:
    """Find that engine and trainer disagree from the first step on, before any update."""
    for gap in _gaps(run):
        first, middle = gap.values[0], median(gap.values)
        if len(gap) > FEW and min(first, middle) >= LARGE_GAP[gap.name] and middle < GROWN * first:
            what = f"{gap.name} is {number(min(gap.values))} to {number(max(gap.values))} at all {_steps_of(gap)}"
            yield MetricFinding("gap from the first step", what, gap)
            return


def _gaps(run: Run) -> list[Series]:
    return [gap for name in NAMES["gap"] if len(gap := run.named(name).numbers())]


def _find_clipped_at_once(run: Run) -> Iterator[MetricFinding]:
    """Find that ratios were clipped in the first update, when the policy was still the one that sampled."""
    clipped = run.get("clip fraction").numbers()
    if len(clipped) and clipped.values[0] >= CLIPPED and _first_is_on_policy(run, clipped):
        first = clipped.where(lambda step, _: step == clipped.steps[0])
        what = f"{clipped.name} is {number(first.values[0])} at step {first.steps[0]}, before any update"
        yield MetricFinding("clipped on the policy that sampled", what, first)


def _first_is_on_policy(run: Run, clipped: Series) -> bool:
    if clipped.name in UPDATES_ONCE_A_STEP:
        return run.numbered and clipped.steps[0] == 1  # a later one would be a mean over several
    sizes = [run.settings.get(key, set()) for key in ("train_batch_size", "ppo_mini_batch_size")]
    return len(sizes[0]) == 1 and sizes[0] == sizes[1] and run.settings.get("ppo_epochs") == {1}


def _find_zero_reward(run: Run) -> Iterator[MetricFinding]:
    """Find that no completion was ever given a reward: 0 at every step, without spread."""
    reward = run.get("reward").numbers()
    spreads = (run.get(name).numbers() for name in ("spread of rewards", "highest reward", "lowest reward"))
    if len(reward) >= ALWAYS and reward.all(_is_zero) and all(one.all(_is_zero) for one in spreads if len(one)):
        yield MetricFinding("reward of 0", f"{reward.name} is 0 at all {_steps_of(reward)}", reward)


def _find_equal_rewards(run: Run) -> Iterator[MetricFinding]:
    """Find that every completion of every prompt was given the same reward, which is not 0: nothing to learn from."""
    reward = run.get("reward").numbers()
    if len(reward) >= ALWAYS and reward.constant() and not reward.all(_is_zero) and _flat_everywhere(run):
        what = f"{reward.name} is {number(reward.values[0])} at all {_steps_of(reward)}, without spread"
        yield MetricFinding("equal rewards", what, reward)


def _find_equal_groups(run: Run) -> Iterator[MetricFinding]:
    """Find that rewards differ from prompt to prompt, and never within a prompt's group."""
    reward = run.get("reward").numbers()
    groups = run.get("groups without spread").numbers()
    if len(groups):
        sign, none, what = "no spread in any group", groups.all(lambda value: value == 1), f"{groups.name} is 1"
    else:
        groups = run.get("highest advantage").numbers()
        none = groups.all(_is_zero) and run.get("lowest advantage").numbers().all(_is_zero)
        sign, what = "advantages of 0", f"{groups.name} is 0"
    if none and len(groups) >= ALWAYS and len(reward) and not (reward.constant() and _flat_everywhere(run)):
        what += f" at all {_steps_of(groups)}, and {reward.name} differs ({_range(reward)})"
        yield MetricFinding(sign, what, groups)


def _find_raw_reward_as_advantage(run: Run) -> Iterator[MetricFinding]:
    """Find that advantages are the rewards themselves: nothing was compared within groups."""
    highest, lowest = (run.get(f"{end} advantage").numbers() for end in ("highest", "lowest"))
    reward = run.get("highest reward").numbers()
    same = _is_same(highest, reward) and _is_same(lowest, run.get("lowest reward").numbers())
    if same and highest.values != lowest.values:
        of = reward.name.rpartition("/")[0]
        what = f"{highest.name} and {lowest.name} are those of {of} at all {_steps_of(highest)}"
        yield MetricFinding("advantage = reward", what, highest)


def _is_same(advantage: Series, reward: Series) -> bool:
    if len(advantage) < ALWAYS or advantage.steps != reward.steps:
        return False
    pairs = zip(advantage.values, reward.values, strict=True)
    return all(math.isclose(a, r, rel_tol=1e-4, abs_tol=1e-6) for a, r in pairs)


def _find_cut_short(run: Run) -> Iterator[MetricFinding]:
    """Find that every completion was held for cut off at the limit, at every step."""
    cut = run.get("cut short").numbers()
    if len(cut) < ALWAYS or not cut.all(lambda value: value == 1):
        return
    what = f"{cut.name} is 1 at all {_steps_of(cut)}"
    shortest, longest = run.get("shortest completion").numbers(), run.get("longest completion").numbers()
    if shortest.steps == longest.steps and sum(a < b for a, b in zip(shortest.values, longest.values, strict=True)) > 1:
        what += f", {shortest.name} {_range(shortest)}, {longest.name} {_range(longest)}"
        yield MetricFinding("all cut short, of several lengths", what, cut)
    else:
        yield MetricFinding("all at the limit", what, cut)


def _flat_everywhere(run: Run) -> bool:
    """Return whether all rewards were the same within each step, as far as the run says; not where it says nothing."""
    spread = run.get("spread of rewards").numbers()
    if len(spread):
        return spread.all(_is_zero)
    highest, lowest = run.get("highest reward").numbers(), run.get("lowest reward").numbers()
    return len(highest) > 0 and highest.values == lowest.values


def _steps_of(series: Series) -> str:
    if len(series) == 1:
        return f"step {series.steps[0]}"
    return f"{len(series)} steps ({min(series.steps)} to {max(series.steps)})"


def _range(series: Series) -> str:
    low, high = (number(end(series.values)) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _is_zero(value: float) -> bool:
    return value == 0


_SIGNS: tuple[Callable[[Run], Iterator[MetricFinding]], ...] = (
    _find_reward_not_a_number,
    _find_gradient_not_a_number,
    _find_growing_gap,
    _find_constant_gap,
    _find_clipped_at_once,
    _find_zero_reward,
    _find_equal_rewards,
    _find_equal_groups,
    _find_raw_reward_as_advantage,
    _find_cut_short,
)
