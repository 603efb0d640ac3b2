"""Signs of failures in how engine and trainer see one policy: their log-probabilities' gap, and clipping without need."""

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
    for gap in _gaps(run):
        first, later = gap.values[0], gap.where(lambda step, _, start=gap.steps[0]: step > start)  # type: ignore[misc]
        if len(later) < FEW:
            continue
        alike = 0 < first <= ALIKE
        apart = max(APART if alike else LARGE_GAP[gap.name], GROWN * first)
        off = later.where(lambda _, value, apart=apart: value >= apart)  # type: ignore[misc]
        last = median(gap.values[-max(FEW, len(gap) // 3) :])
        healed = _healed(gap, apart)
        if len(off) < FEW or not (alike or healed or last >= apart):
            continue
        what = f"{gap.name} is {number(first)} at step {gap.steps[0]} and up to {number(max(off.values))} at {steps_of(off)}"
        what += f"; back at {number(gap.values[healed])} with the restart at step {gap.steps[healed]}" * bool(healed)
        return MetricFinding(
            "gap that heals after a restart" if healed else "growing gap",
            what,
            ("prefix-cache-stale-weights", "partial-weight-sync", "lora-same-id-stale")
            + ((() if healed else ("tied-embeddings-sync", "reload-from-disk-stale", "moe-routing-disagrees"))),
            "possible",
            "the engine samples from another policy than the trainer's: weights that a sync leaves out, or what was "
            "computed with old ones."
            + (" A new engine agreed again, so that it is not the way in which they compute." if healed else ""),
            "send the weights once more and compare log-probabilities of one prompt; then again behind "
            "reset_prefix_cache(), and with a new engine that loads a checkpoint.",
            gap,
        )
    return None


def constant_gap(run: Run) -> MetricFinding | None:
    """Engine and trainer disagree from the first step on, before any update."""
    for gap in _gaps(run):
        large = LARGE_GAP[gap.name]
        first = gap.values[0]
        if len(gap) <= FEW or first < large or median(gap.values) < large or median(gap.values) >= GROWN * first:
            continue
        return MetricFinding(
            "gap from the first step",
            f"{gap.name} is {number(min(gap.values))} to {number(max(gap.values))} at all {steps_of(gap)}",
            (
                "sampling-logprobs-temperature",
                "truncated-support-logprobs",
                "generation-config-defaults",
                "dtype-default-bf16",
                "moe-routing-disagrees",
                "double-bos",
                "rope-theta-lost",
                "tied-embeddings-sync",
            ),
            "possible",
            "engine and trainer compute log-probabilities differently, before any update: weight syncs are not the reason.",
            "compare both on one prompt at temperature 1 without top_p and top_k; then the ids they start from, the dtype, "
            "and rope_theta. agreement.explain of this package tries these in turn.",
            gap,
        )
    return None


def clipped_at_once(run: Run) -> MetricFinding | None:
    """Ratios were clipped in the first update, when the policy was still the one that sampled."""
    clipped = run.get("clip fraction").numbers()
    if not len(clipped) or clipped.values[0] < CLIPPED or not _first_is_on_policy(run, clipped):
        return None
    first = clipped.where(lambda step, _: step == clipped.steps[0])
    return MetricFinding(
        "clipped on the policy that sampled",
        f"{clipped.name} is {number(first.values[0])} at step {first.steps[0]}, before any update",
        ("dropout-in-ratio", "packed-samples-attend", "left-padding-positions"),
        "possible",
        "a policy's ratio with itself is 1, and nothing of it is to be clipped: old and new log-probabilities were "
        "computed differently.",
        "set every dropout to 0; run a step at learning rate 0, and compare old and new log-probabilities.",
        first,
    )


def _gaps(run: Run) -> list[Series]:
    return [gap for name in NAMES["gap"] if len(gap := run.named(name).numbers())]


def _healed(gap: Series, apart: float) -> int:
    """Return where a gap that was large is small right after a restart, 0 for nowhere."""
    places = (place for place in gap.restarts if 0 < place < len(gap))
    return next((at for at in places if gap.values[at - 1] >= apart > GROWN * gap.values[at]), 0)


def _first_is_on_policy(run: Run, clipped: Series) -> bool:
    if clipped.name in UPDATES_ONCE_A_STEP:
        return run.numbered and clipped.steps[0] == 1  # a later one would be a mean over several
    sizes = [run.settings.get(key, set()) for key in ("train_batch_size", "ppo_mini_batch_size")]
    return len(sizes[0]) == 1 and sizes[0] == sizes[1] and run.settings.get("ppo_epochs") == {1}
