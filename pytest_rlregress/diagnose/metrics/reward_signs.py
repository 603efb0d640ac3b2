"""Signs of failures in rewards, advantages, lengths and gradients. Pure functions of a run."""

from __future__ import annotations

import math

from pytest_rlregress.diagnose.metrics.evidence import MetricFinding, number, steps_of
from pytest_rlregress.diagnose.metrics.series import Run, Series

#: From how many steps on "at all steps" is no chance of the first batches.
ALWAYS = 10
#: How many steps in a row without a number for a gradient are no scaler of float16 that looks for its scale.
NO_NUMBER = 3
#: How many steps after a gradient that is no number show what became of the policy.
COLLAPSED = 2


def zero_reward(run: Run) -> MetricFinding | None:
    """No completion was ever given a reward: 0 at every step, without spread."""
    reward = run.get("reward").numbers()
    flat = all(run.get(name).numbers().all(_is_zero) for name in _spread_of(run))
    if len(reward) < ALWAYS or not reward.all(_is_zero) or not flat:
        return None
    return MetricFinding(
        "reward of 0",
        f"{reward.name} is 0 at all {steps_of(reward)}",
        ("math-verify-zero-reward", "special-tokens-stripped-from-reward", "truncation-told-by-eos-id"),
        "possible",
        "no completion has ever scored: a judge that fails gives 0 for right answers too, and so does a task that is "
        "too hard.",
        "score an answer that is known to be right with the run's own reward function, in the thread or worker it runs "
        "in; print what exactly the function is given.",
        reward,
    )


def equal_rewards(run: Run) -> MetricFinding | None:
    """Every completion of every prompt was given the same reward, which is not 0: nothing to learn from."""
    reward = run.get("reward").numbers()
    if len(reward) < ALWAYS or not reward.constant() or reward.all(_is_zero):
        return None
    if not _flat_everywhere(run):
        return None
    return MetricFinding(
        "equal rewards",
        f"{reward.name} is {number(reward.values[0])} at all {steps_of(reward)}, without spread",
        ("special-tokens-stripped-from-reward", "math-verify-zero-reward"),
        "possible",
        "the reward does not depend on the completion, unless all are right: every advantage is 0, and the gradient.",
        "call the reward function with a right and with a wrong completion, as it gets them in the run.",
        reward,
    )


def equal_groups(run: Run) -> MetricFinding | None:
    """Rewards differ from prompt to prompt, and never within a prompt's group."""
    reward = run.get("reward").numbers()
    groups = run.get("groups without spread").numbers()
    if len(groups):
        none, what = groups.all(lambda value: value == 1), f"{groups.name} is 1"
    else:
        groups = run.get("highest advantage").numbers()
        none = groups.all(_is_zero) and run.get("lowest advantage").numbers().all(_is_zero)
        what = f"{groups.name} is 0"
    if not none or len(groups) < ALWAYS or not len(reward) or (reward.constant() and _flat_everywhere(run)):
        return None
    return MetricFinding(
        "no spread in any group",
        f"{what} at all {steps_of(groups)}, and {reward.name} differs ({_range(reward)})",
        ("same-seed-replicas", *(["reward-on-masked-token"] if "advantage" in groups.name else [])),
        "possible",
        "completions of one prompt score alike though prompts differ: they may be the same text, or the reward is lost "
        "on its way to the advantages. The gradient is 0.",
        "print the completions of one prompt side by side: the same word for word? Is one seed sent with each request?",
        groups,
    )


def raw_reward_as_advantage(run: Run) -> MetricFinding | None:
    """Advantages are the rewards themselves: nothing was compared within groups."""
    pairs = [(f"{end} advantage", f"{end} reward") for end in ("highest", "lowest")]
    found = [(run.get(advantage).numbers(), run.get(reward).numbers()) for advantage, reward in pairs]
    same = all(
        len(advantage) >= ALWAYS
        and advantage.steps == reward.steps
        and all(
            math.isclose(a, r, rel_tol=1e-4, abs_tol=1e-6) for (_, a), (_, r) in zip(advantage, reward, strict=True)
        )
        for advantage, reward in found
    )
    (highest, reward), (lowest, _) = found
    if not same or highest.values == lowest.values:
        return None
    return MetricFinding(
        "advantage = reward",
        f"{highest.name} and {lowest.name} are those of {reward.name.rpartition('/')[0]} at all {steps_of(highest)}",
        ("singleton-group-raw-reward",),
        "possible",
        "groups have one member each, or there is no baseline: an answer that scores above 0 is pushed up, however "
        "good its neighbours are.",
        "count the rows of each group by the id that advantages are computed by (verl's uid): n of each?",
        highest,
    )


def cut_short(run: Run) -> MetricFinding | None:
    """Every completion was held for cut off at the limit, at every step."""
    cut = run.get("cut short").numbers()
    if len(cut) < ALWAYS or not cut.all(lambda value: value == 1):
        return None
    shortest, longest = run.get("shortest completion").numbers(), run.get("longest completion").numbers()
    if shortest.steps == longest.steps and sum(a < b for a, b in zip(shortest.values, longest.values, strict=True)) > 1:
        return MetricFinding(
            "all cut short, of several lengths",
            f"{cut.name} is 1 at all {steps_of(cut)}, {shortest.name} {_range(shortest)}, {longest.name} "
            f"{_range(longest)}",
            ("truncation-told-by-eos-id",),
            "possible",
            "completions that ended before the limit are held for cut short: the engine stops on an id that the "
            "trainer does not know, or its limit differs from prompt to prompt.",
            "compare the last ids of completions with the trainer's eos_token_id, and with those of "
            "generation_config.json; look at finish_reason.",
            cut,
        )
    return MetricFinding(
        "all at the limit",
        f"{cut.name} is 1 at all {steps_of(cut)}",
        ("pad-is-eos", "truncation-told-by-eos-id"),
        "possible",
        "no completion ever ends by itself: the limit is too low for the task, or the model does not end its turns.",
        "read a few completions: do they go on behind their answer? Does the chat template's end of a turn stand among "
        "the labels that the model was trained on, and among the engine's stop ids?",
        cut,
    )


def gradient_not_a_number(run: Run) -> MetricFinding | None:
    """The gradient's norm became NaN or infinite, and stayed so."""
    norm = run.get("gradient norm")
    bad = norm.where(lambda _, value: not math.isfinite(value))
    if not len(bad):
        return None
    # The last run of steps without a number, up to the end.
    sound = norm.numbers()
    start = sound.steps[-1] if len(sound) else bad.steps[0] - 1
    rest = bad.after(start)
    if not len(rest):
        return None
    begun = rest.steps[0]
    collapse = _collapse(run, begun)
    steps, entropy = set(rest.steps), run.get("entropy")
    lost = len(entropy.where(lambda step, value: math.isnan(value) and step in steps))
    if not collapse and not lost and (len(rest) < NO_NUMBER or not len(sound)):
        return None
    policy = f", with {entropy.name}: the policy's own output is no number" if lost else ""
    return MetricFinding(
        "gradient that is not finite",
        f"{norm.name} is not finite from step {begun} to {rest.steps[-1]}{policy}"
        + f", and then {collapse}" * bool(collapse),
        ("nan-step-exclamation-marks",),
        "certain" if collapse else "possible",
        "an update with such a gradient makes every weight NaN; the engine then draws one token for ever.",
        "look for NaN in the weights of the checkpoint behind that step, and at the completions: one token, repeated?",
        rest,
    )


def reward_not_a_number(run: Run) -> MetricFinding | None:
    """A reward was no number, and the advantages with it."""
    reward, advantage, aborted = (run.get(name) for name in ("reward", "mean advantage", "aborted"))
    lost = dict(advantage.where(lambda _, value: math.isnan(value)))
    nothing = {step for step, ratio in aborted if ratio == 1}  # then neither is defined
    both = reward.where(lambda step, value: math.isnan(value) and step in lost and step not in nothing)
    if not len(both) or not len(reward.numbers()) or not len(advantage.numbers()):
        return None
    return MetricFinding(
        "reward that is no number",
        f"{both.name} and {advantage.name} are no numbers at {steps_of(both)}",
        ("nan-reward-poisons-group",),
        "certain",
        "one reward that is NaN makes every advantage of its group NaN, and the gradient of the batch.",
        "log the rewards that are not finite, with the function that gave them.",
        both,
    )


def _collapse(run: Run, begun: int) -> str:
    """Say what shows that completions were all the same after a step, and were not before; nothing where none does."""
    pairs = [("shortest completion", "longest completion"), ("lowest reward", "highest reward")]
    for low, high in pairs:
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
    """Whether all of a series' steps after one are among some, and not all before it."""
    after, before = series.after(begun), series.where(lambda step, _: step < begun)
    return len(after) >= COLLAPSED and steps.issuperset(after.steps) and not steps.issuperset(before.steps)


def _spread_of(run: Run) -> list[str]:
    return [name for name in ("spread of rewards", "highest reward", "lowest reward") if len(run.get(name).numbers())]


def _flat_everywhere(run: Run) -> bool:
    """Whether all rewards were the same within each step, as far as the run says; not where it says nothing."""
    spread = run.get("spread of rewards").numbers()
    if len(spread):
        return spread.all(_is_zero)
    highest, lowest = run.get("highest reward").numbers(), run.get("lowest reward").numbers()
    return len(highest) > 0 and highest.values == lowest.values


def _range(series: Series) -> str:
    low, high = (number(end(series.values)) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _is_zero(value: float) -> bool:
    return value == 0
