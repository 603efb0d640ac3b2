"""Signs of failures in how engine and trainer see one policy: a gap of log-probabilities, clipping without need."""

from __future__ import annotations

from statistics import median

from pytest_rlregress.diagnose.metrics.evidence import MetricFinding, number, steps_of
from pytest_rlregress.diagnose.metrics.names import LARGE_GAP, NAMES, UPDATES_ONCE_A_STEP
from pytest_rlregress.diagnose.metrics.series import Run, Series

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


def growing_gap(run: Run) -> MetricFinding | None:
    """Engine and trainer agree at first, and do not later: new weights do not arrive, or old ones stay in use."""
    return next((found for gap in _gaps(run) if (found := _growth(gap))), None)


def _growth(gap: Series) -> MetricFinding | None:
    first, later = gap.values[0], gap.after(gap.steps[0])
    if len(later) < FEW:
        return None
    alike = 0 < first <= ALIKE
    apart = max(APART if alike else LARGE_GAP[gap.name], GROWN * first)
    off = later.where(lambda _, value: value >= apart)
    lately = median(gap.values[-max(FEW, len(gap) // 3) :])
    healed = _healed(gap, apart)
    # In bfloat16 single steps may be far off in a sound run; in float32 none is.
    back = healed or (_back(gap, apart) if alike else 0)
    if len(off) < FEW or not (alike or healed or lately >= apart):
        return None
    what = f"{gap.name} is {number(first)} at step {gap.steps[0]}, up to {number(max(off.values))} at {steps_of(off)}"
    ids: tuple[str, ...] = ("prefix-cache-stale-weights", "partial-weight-sync", "lora-same-id-stale")
    means = "the engine samples from another policy than the trainer's: a sync left weights out, or old results of "
    means += "theirs are used on."
    if back:
        sign = "gap that heals after a restart" if healed else "gap that comes and goes"
        what += f"; {number(gap.values[back])} at step {gap.steps[back]}" + ", after a restart" * bool(healed)
        means += " It was gone at once, so that both compute alike."
    else:
        sign = "growing gap"
        ids = (*ids, "trl-colocate-load-weights", "moe-routing-disagrees")
    confirm = "send all weights once more, and compare both sides' log-probabilities of one prompt; then behind "
    confirm += "reset_prefix_cache(); then with a new engine that loads a checkpoint."
    return MetricFinding(sign, what, ids, "possible", means, confirm, gap)


def constant_gap(run: Run) -> MetricFinding | None:
    """Engine and trainer disagree from the first step on, before any update."""
    return next((found for gap in _gaps(run) if (found := _constant(gap))), None)


def _constant(gap: Series) -> MetricFinding | None:
    large, first, middle = LARGE_GAP[gap.name], gap.values[0], median(gap.values)
    if len(gap) <= FEW or min(first, middle) < large or middle >= GROWN * first:
        return None
    return MetricFinding(
        "gap from the first step",
        f"{gap.name} is {number(min(gap.values))} to {number(max(gap.values))} at all {steps_of(gap)}",
        (
            "sampling-logprobs-temperature",
            "truncated-support-logprobs",
            "generation-config-defaults",
            "bf16-update-vanishes",
            "moe-routing-disagrees",
            "double-bos",
            "rope-theta-lost",
            "trl-colocate-load-weights",
        ),
        "possible",
        "engine and trainer compute log-probabilities differently, before any update: syncs of weights are not why.",
        "compare both on one prompt at temperature 1 without top_p and top_k; then the ids that they start from, the "
        "dtype and rope_theta. pytest_rlregress.agreement.causes.explain tries such causes in turn.",
        gap,
    )


def clipped_at_once(run: Run) -> MetricFinding | None:
    """Ratios were clipped in the first update, when the policy was still the one that sampled."""
    clipped = run.get("clip fraction").numbers()
    if not len(clipped) or clipped.values[0] < CLIPPED or not _first_is_on_policy(run, clipped):
        return None
    first = clipped.where(lambda step, _: step == clipped.steps[0])
    return MetricFinding(
        "clipped on the policy that sampled",
        f"{clipped.name} is {number(first.values[0])} at step {first.steps[0]}, before any update",
        ("dropout-in-ratio", "packed-samples-attend"),
        "possible",
        "a policy's ratio with itself is 1, and nothing of it is to be clipped: old and new log-probabilities were "
        "computed differently. With a range as narrow as GSPO's, rounding in bfloat16 is enough.",
        "set every dropout to 0; run a step at learning rate 0, and compare old and new log-probabilities.",
        first,
    )


def _gaps(run: Run) -> list[Series]:
    return [gap for name in NAMES["gap"] if len(gap := run.named(name).numbers())]


def _back(gap: Series, apart: float) -> int:
    """Return where a gap that was large is small again a step later, 0 for nowhere."""
    places = range(1, len(gap))
    return next((at for at in places if gap.values[at] * GROWN <= apart <= gap.values[at - 1]), 0)


def _healed(gap: Series, apart: float) -> int:
    """Return at which restart a gap that was large for some steps became small, 0 for none."""
    places = [at for at in gap.restarts if 0 < at < len(gap) and apart <= median(gap.values[max(0, at - FEW) : at])]
    return next((at for at in places if gap.values[at] * GROWN <= apart), 0)


def _first_is_on_policy(run: Run, clipped: Series) -> bool:
    if clipped.name in UPDATES_ONCE_A_STEP:
        return run.numbered and clipped.steps[0] == 1  # a later one would be a mean over several
    sizes = [run.settings.get(key, set()) for key in ("train_batch_size", "ppo_mini_batch_size")]
    return len(sizes[0]) == 1 and sizes[0] == sizes[1] and run.settings.get("ppo_epochs") == {1}
