"""What must be true of a step of a user's run: the properties of every step's record, and some of its own.

As in ``step_properties`` a function yields the complaints that it has of a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_rlregress.agreement.explanation import name_tensors
from pytest_rlregress.fixtures import step_properties
from pytest_rlregress.fixtures.step_properties import CLOSED_FORM, Property, advantage_slack, pair_rows

#: Engine and trainer agree within as many times the rounding that was measured (``agreement.causes.FACTOR``).
FLOORS = 8
#: Log-probabilities of one model for the same tokens, in nats. Measured in float32: up to 4e-6 where the rows of two
#: passes are padded differently.
SAME = 1e-4
#: Two passes of the same batch. Measured: 0; a lora_dropout of 0.05 makes 2e-5 after the first update of a tiny model.
SAME_BATCH = 1e-6
#: Engine and model behind a prompt of 300 tokens, in nats a token, where the floor of rounding isn't larger.
CACHED = 1e-5
#: Two gradients of the same rows, relative to the gradient. Measured in float32: up to 3e-6.
SAME_GRADIENT = 1e-3
#: A gradient's cosine with the closed form's is this near to 1, at least.
SAME_DIRECTION = 1e-3


def groups_are_whole(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of rows of one group that aren't of one prompt: their rewards are compared with each other."""
    size = record.group_size
    for start in range(0, len(record.group_rows), size):
        group = record.group_rows[start : start + size]
        if len(set(group)) > 1 or len(group) < size:
            yield (
                f"rows {start} to {start + len(group) - 1} are one group of {size}, but of {len(set(group))} prompts: "
                "their rewards are compared with each other's"
            )


def engine_gets_the_prompts(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a completion whose engine was given other ids than are trained on."""
    given = dict(zip(record.engine_completions, record.engine_prompts, strict=True))
    for ids, prompt in zip(record.trained_tokens, record.prompts, strict=True):
        if given.get(ids, prompt) != prompt:
            yield f"the engine was given {list(given[ids])} for completion {list(ids)}, trained on is {list(prompt)}"
            return


def pair_trained(record: Any, sampled: Sequence[Any], trained: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Pair the sampled and the trained side of each completion that has a trained token; their orders may differ."""
    if not record.truncated_masked:
        yield from pair_rows(record, sampled, trained)
        return
    rows = zip(record.completions, sampled, record.lengths, strict=True)
    one = sorted((ids, of_sampled) for ids, of_sampled, length in rows if length)
    other = sorted((ids, of_trained) for ids, of_trained in zip(record.trained_tokens, trained, strict=True) if ids)
    yield from zip(one, other, strict=False)


def prompts_are_the_templates(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a prompt whose ids aren't those of its text."""
    for (ids, expected), (_, prompt) in pair_trained(record, record.expected_prompts, record.prompts):
        if prompt != expected:
            yield f"the prompt of completion {list(ids)} has the tokens {list(prompt)}, its text has {list(expected)}"


def sampled_ids_are_trained(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain as for every trainer, but not of completions that are left out on purpose."""
    if not record.truncated_masked:
        yield from step_properties.PROPERTIES["mask"][1](record, tolerance, compared)


def each_row_is_trained(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of completions without a trained token."""
    empty = [row for row, length in enumerate(record.lengths) if not length]
    if len(empty) == len(record.lengths):
        yield "no completion has a trained token: every label is masked"
    elif empty and not record.truncated_masked:
        yield f"{len(empty)} of {len(record.lengths)} completions have no trained token, the first is row {empty[0]}"


def rewards_are_the_functions(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of rewards that the trainer used and no reward function gave."""
    if record.reward_difference > 1e-5:
        yield f"the trainer used rewards that differ from the reward functions' by up to {record.reward_difference:.3g}"


def rewards_are_numbers(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of completions that no reward function scored."""
    own = record.own_rewards or record.rewards
    missing = sum(not math.isfinite(one) for group in own for one in group)
    if missing:
        yield f"{missing} of {sum(map(len, own))} completions have no reward: their advantage is 0, whatever they say"


def advantages_are_the_rewards(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of an advantage that isn't the one that its group's rewards make."""
    for (ids, right), (_, advantage) in pair_trained(record, record.wanted, record.advantages):
        if abs(advantage - right) > advantage_slack(abs(right), record.epsilon):
            yield f"the advantage of completion {list(ids)} is {advantage:.4g}, its group's rewards make {right:.4g}"


def engine_has_the_weights(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of an engine that samples with other weights than the trainer's."""
    if record.stale:
        yield f"the engine samples with other weights than the trainer's: {name_tensors(record.stale)}"


def engine_agrees(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of log-probabilities that are further apart than rounding."""
    if not record.gap <= FLOORS * record.floor:
        when = "" if record.number > 1 else ", before any update"
        yield f"engine and trainer disagree{when}: {record.cause or f'{record.gap:.2g} nats a token'}"


def cache_is_of_the_new_weights(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of an engine that goes on from what it cached of a prompt under older weights."""
    if record.gap <= FLOORS * record.floor and not record.cached_gap <= max(CACHED, 4 * FLOORS * record.floor):
        yield (
            f"behind a long prompt that was sampled from before the sync the engine is {record.cached_gap:.2g} nats a "
            "token off, and else it agrees: reset the prefix cache after each update"
        )


def ratio_is_one(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a ratio that isn't 1 before the first update on a rollout."""
    if not record.ratio_difference <= record.same:
        yield (
            f"before the update the ratio isn't 1: log-probabilities of the loss and of the rollout differ by up to "
            f"{record.ratio_difference:.2g} nats"
        )


def reference_is_the_start(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a reference model that isn't the policy before the first update."""
    if not record.reference_difference <= record.same:
        yield (
            f"the KL divergence isn't 0 before the first update: the reference model's log-probabilities differ by up "
            f"to {record.reference_difference:.2g} nats"
        )


def passes_are_the_same(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a policy that is random while it is trained; adapters that are zero at first hide it in one step."""
    if record.dropouts or not record.second_pass <= SAME_BATCH:
        by = ", ".join(record.dropouts) or "a dropout in its forward, such as attention_dropout"
        apart = f"two passes of one batch differ by up to {record.second_pass:.2g} nats"
        if record.second_pass == 0:
            apart = "adapters that are still zero hide it in this step"
        yield f"the policy is random while it is trained, by {by}: {apart}"


def split_is_the_same(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a gradient that depends on how the rows are split into micro batches."""
    if not record.split_difference <= SAME_GRADIENT:
        yield (
            f"the gradient depends on the split into micro batches: in two halves it differs by "
            f"{record.split_difference:.2g} of its size"
        )


def masked_ids_do_not_count(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a gradient that depends on ids that the mask leaves out."""
    if not record.masked_difference <= SAME_GRADIENT:
        yield (
            f"the gradient depends on tokens that the mask leaves out: with other ids there it differs by "
            f"{record.masked_difference:.2g} of its size"
        )


def gradient_points_the_same_way(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a gradient that doesn't point where the closed form's does."""
    if not record.direction >= 1 - SAME_DIRECTION:
        yield f"the gradient's cosine with the closed form's is {record.direction:.4f}: it raises other completions"


def loss_is_the_closed_form(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a loss that isn't the closed form's."""
    if abs(record.loss - record.expected_loss) > CLOSED_FORM * tolerance * max(1.0, abs(record.expected_loss)):
        yield f"the loss is {record.loss:.6g}, the closed form makes {record.expected_loss:.6g} of this batch"


def there_is_a_gradient(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a gradient that is zero."""
    if record.grad_norm <= 0:
        yield "the gradient is zero"


def gradient_is_the_closed_form(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of a gradient whose norm isn't the closed form's."""
    right = record.expected_grad_norm
    if not abs(record.grad_norm - right) <= SAME_GRADIENT * right:
        yield f"the gradient's norm is {record.grad_norm:.6g}, the closed form makes {right:.6g} of this batch"


def update_moves_the_weights(record: Any, tolerance: float, compared: str) -> Iterator[str]:
    """Complain of weights that an update leaves as they are."""
    if not record.learning_rate:
        yield "the learning rate is 0"
    elif record.unmoved:
        more = f" and {len(record.unmoved) - 1} more" if len(record.unmoved) > 1 else ""
        yield f"an update by learning rate {record.learning_rate:.3g} did not move {record.unmoved[0]}{more}"


_STEP = step_properties.PROPERTIES
#: In the order in which a fault is best named.
PROPERTIES: dict[str, tuple[tuple[str, ...], Property]] = {
    "groups": (("group_size", "group_rows"), groups_are_whole),
    "completions": _STEP["completions"],
    "mask": (("completions", "trained_tokens"), sampled_ids_are_trained),
    "trained tokens": (("lengths",), each_row_is_trained),
    "prompts": (("completions", "expected_prompts", "trained_tokens", "prompts"), prompts_are_the_templates),
    "engine's prompts": (("engine_prompts", "engine_completions"), engine_gets_the_prompts),
    "rewards used": (("reward_difference",), rewards_are_the_functions),
    "rewards given": ((), rewards_are_numbers),
    "spread of rewards": _STEP["reward differences"],
    "advantages": (("completions", "wanted", "trained_tokens", "advantages", "epsilon"), advantages_are_the_rewards),
    "sync": (("stale",), engine_has_the_weights),
    "second pass": (("second_pass",), passes_are_the_same),
    "agreement": (("gap", "floor"), engine_agrees),
    "cached prompts": (("gap", "floor", "cached_gap"), cache_is_of_the_new_weights),
    "ratio": (("ratio_difference",), ratio_is_one),
    "reference": (("reference_difference",), reference_is_the_start),
    "micro batches": (("split_difference",), split_is_the_same),
    "masked tokens": (("masked_difference",), masked_ids_do_not_count),
    "gradient": (("grad_norm",), there_is_a_gradient),
    "loss": (("loss", "expected_loss"), loss_is_the_closed_form),
    "gradient's norm": (("grad_norm", "expected_grad_norm"), gradient_is_the_closed_form),
    "direction": (("direction",), gradient_points_the_same_way),
    "gradients": _STEP["gradients"],
    "update": (("unmoved", "learning_rate"), update_moves_the_weights),
}
