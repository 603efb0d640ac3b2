"""Rules of preflight about memory: whether trainer and engine fit on the card.

Predicted is less rather than more, so that what is found to be too much is too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_rlregress import remedies
from pytest_rlregress.commands.preflight.batch_sizes import cuts_evenly, largest_micro_batch
from pytest_rlregress.commands.preflight.config import PlannedRun, Unchecked, not_known
from pytest_rlregress.commands.preflight.training import (
    SIZES,
    Training,
    engine_sleeps,
    model_with,
    on_one_card,
    training_of,
)
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.units import GIB

MOST_CARDS = 1024
_MOST_ASLEEP = 0.8  # of the card, for an engine that sleeps while the trainer works: 0.6 to 0.8 is usual
_NODE = 8  # cards of a usual node


def gpu_memory_utilization(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield an engine that asks, when it starts, for more of the card than the trainer leaves."""
    key, default = run.keys.share
    asked = run.number(key, default)
    if not on_one_card(run):
        return
    if asked is None:
        yield not_known(key)
        return
    if not run.memory_bytes:
        yield _no_memory(run)
        return
    training = training_of(run)
    held = _held_later(run, training)
    if asked <= _share_limit(run, training) or _too_large(run, training):  # of which trainer-engine-oom tells
        return
    total = run.memory_bytes / GIB
    why = f"the engine asks for {asked:g} of {total:.0f} GiB, and shares the card with the trainer"
    has_moments = held > _held(run, training)
    parts = "weights and, from the second step on, Adam's moments" if has_moments else "weights"
    why += f", whose {parts} take {held / GIB:.0f} GiB" if held else ""
    if share := _share_beside(run, training):
        yield Advice(key, why, run.write(key, share))
    elif isinstance(training, Training):
        lacking = (held if engine_sleeps(run) else training.peak()) + _engine_weights(run, training) - run.memory_bytes
        why += f": both need {lacking / GIB:.0f} GiB more"
        yield Advice(key, why, ways_to_fit(run, training, run.memory_bytes - _engine_weights(run, training))[1])


def trainer_engine_oom(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield a trainer whose step needs more than an engine leaves that was able to start."""
    training = training_of(run)
    if isinstance(training, Unchecked) or training.doubt:
        yield training if isinstance(training, Unchecked) else training.doubt or Unchecked("")
        return
    if not run.memory_bytes:
        yield _no_memory(run)
        return
    share = 0.0
    if on_one_card(run):
        asked = run.number(*run.keys.share) or 0
        if asked > _share_limit(run, training) and not _too_large(run, training):
            return
        share = 0 if engine_sleeps(run) else asked
    left = int(run.memory_bytes * (1 - share))
    needed = training.peak()
    if needed <= left:
        return
    engine = f", of which the engine has {share:g}" if share else ""
    much = (needed - left) / GIB
    why = f"a step of the trainer needs about {needed / GIB:.0f} GiB of {run.memory_bytes / GIB:.0f}{engine}: "
    why += f"{much:.0f} GiB too much" if much > 10 else f"{much:.1f} GiB too much"
    key, instead = ways_to_fit(run, training, left)
    if left < run.memory_bytes and key != run.keys.checkpointing[0]:  # a smaller share of the engine, if it is enough
        if smaller := _share_beside(run, training):
            key, instead = run.keys.share[0], run.write(run.keys.share[0], smaller)
        else:
            instead = ways_to_fit(run, training, run.memory_bytes - _engine_weights(run, training))[1]
    yield Advice(key, why, instead)


def _no_memory(run: PlannedRun) -> Unchecked:
    return Unchecked(f"{run.card} says nothing of GPU memory: give --hw", ("--hw",))


def _held_later(run: PlannedRun, training: Training | Unchecked) -> int:
    """Return the bytes that the trainer holds when a sleeping engine wakes up from the second step on.

    Adam's moments are there then, each in the type of the weights, unless the optimizer is offloaded.
    """
    held = _held(run, training)
    offloaded = run.verl and run.get("actor_rollout_ref.actor.fsdp_config.optimizer_offload") is True
    if isinstance(training, Unchecked) or training.doubt or offloaded or not engine_sleeps(run):
        return held
    return held + training.moments()


def _held(run: PlannedRun, training: Training | Unchecked) -> int:
    """Return the bytes that the trainer holds when the engine starts, as far as that is known."""
    offloaded = run.get("actor_rollout_ref.actor.fsdp_config.param_offload") is True
    return 0 if isinstance(training, Unchecked) or offloaded else training.weights()


def _too_large(run: PlannedRun, training: Training | Unchecked) -> bool:
    """Return whether the trainer alone is too large for the card."""
    return isinstance(training, Training) and not training.doubt and training.peak() > run.memory_bytes


def _share_limit(run: PlannedRun, training: Training | Unchecked) -> float:
    """Return the largest share that the engine can start with."""
    held = _held_later(run, training)
    if engine_sleeps(run) or run.trl:
        return 1 - held / run.memory_bytes
    try:
        return remedies.engine_memory_share(run.memory_bytes, held)
    except ValueError:  # the trainer does not fit, with or without an engine
        return remedies.engine_memory_share(run.memory_bytes, 0)


def _share_beside(run: PlannedRun, training: Training | Unchecked) -> float | None:
    """Return the largest share that leaves the trainer's step enough; None if the engine's weights do not fit in it."""
    reserved = 0
    if isinstance(training, Training):
        sleeps = engine_sleeps(run) or training.doubt
        reserved = _held_later(run, training) if sleeps else training.peak()
    if engine_sleeps(run):  # and is alone on the card while it works, but for what the trainer keeps
        share = min(_MOST_ASLEEP, int(100 * (1 - reserved / run.memory_bytes) - 5) / 100)
        return share if share * run.memory_bytes > _engine_weights(run, training) and share > 0 else None
    try:
        share = remedies.engine_memory_share(run.memory_bytes, reserved)
    except ValueError:
        return None
    return share if share * run.memory_bytes > _engine_weights(run, training) else None


def _engine_weights(run: PlannedRun, training: Training | Unchecked) -> int:
    """Return the bytes of the engine's own weights on a card, in 16 bits."""
    spread = run.number(run.keys.tensor_parallel, 1) or 1
    return 0 if isinstance(training, Unchecked) else int(2 * training.model.parameters / spread)


# What would make a trainer fit that doesn't: the ways that are predicted to be enough, the smallest change first.


def ways_to_fit(run: PlannedRun, training: Training, left: int) -> tuple[str, str]:
    """Return the key to change and what to write, with what else would be enough in comments below it.

    Args:
        run: The run that is checked.
        training: Its training.
        left: Bytes of each card that the trainer may take.
    """
    thrifty = replace(training, checkpointing=True)
    key, recompute = run.keys.checkpointing
    recompute = "" if training.checkpointing else recompute or run.write(key, "true")
    if recompute and thrifty.peak() <= left:
        return key, recompute
    found = list(_changes(run, thrifty, left))
    if not found:
        return run.keys.model, f"# a smaller model: none of {SIZES[0][0]}B and more fits on cards of this size"
    key = found[0][0]
    first, *others = (text for _, text in found)
    return key, "\n".join(
        [*filter(None, [recompute]), first, *(f"# or: {other.removeprefix('# ')}" for other in others[:3])]
    )


def _changes(run: PlannedRun, thrifty: Training, left: int) -> Iterator[tuple[str, str]]:
    yield from _fewer_tokens(run, thrifty, left)
    if not thrifty.lora_rank and replace(thrifty, lora_rank=8).peak() <= left:
        key, text = run.keys.lora
        yield key, text or run.write(key, "true" if run.trl else 8)
    offload = [] if thrifty.lora_rank else list(_offload(run))
    if not (run.verl or run.trl):  # prime-rl's was seen to be enough for 20B on one card of 48 GiB
        yield from offload
    yield from _more_cards(run, thrifty, left)
    if run.verl or run.trl:
        yield from offload
    fits = [size for size, parameters, *_ in SIZES if replace(thrifty, model=model_with(parameters)).peak() <= left]
    if fits and fits[-1] * 1e9 < thrifty.model.parameters:
        yield run.keys.model, f"# a smaller model, of at most {fits[-1]:g}B parameters"


def _fewer_tokens(run: PlannedRun, thrifty: Training, left: int) -> Iterator[tuple[str, str]]:
    def fits(tokens: int) -> bool:
        return replace(thrifty, tokens=tokens).peak() <= left

    least = max(thrifty.least_tokens, 1)
    if least >= thrifty.tokens or not fits(least):
        return
    sequences = max(count for count in range(1, thrifty.tokens // least + 1) if fits(count * least))
    if run.verl and run.get("actor_rollout_ref.actor.use_dynamic_bsz"):
        key, value = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", sequences * least
    else:
        micro = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
        key, value = micro if run.verl else "per_device_train_batch_size", largest_micro_batch(run, sequences)
    yield key, run.write(key, value)


def _more_cards(run: PlannedRun, thrifty: Training, left: int) -> Iterator[tuple[str, str]]:
    enough = [cards for cards in range(thrifty.cards, MOST_CARDS) if replace(thrifty, cards=cards).peak() <= left]
    if not enough:
        return
    even = (cards for cards in enough if cuts_evenly(run, cards if cards <= _NODE else -(-cards // _NODE) * _NODE))
    cards = next(even, enough[0])
    if run.verl:
        nodes = -(-cards // _NODE)
        key, value = ("trainer.nnodes", nodes) if cards > _NODE else ("trainer.n_gpus_per_node", cards)
        yield key, run.write(key, value) + (f"  # with {_NODE} cards each" if cards > _NODE else "")
    elif run.trl:
        shards = "" if thrifty.cards > 1 else "  # with FSDP or ZeRO-3 (accelerate_config: zero3)"
        yield "accelerate.num_processes", f"num_processes: {cards}{shards}"
    else:
        yield "trainer_gpu_ids", f"trainer_gpu_ids = {list(range(1, cards + 1))}  # {cards} cards"


def _offload(run: PlannedRun) -> Iterator[tuple[str, str]]:
    """Yield how the trainer's state is kept in the host's memory, of which how much is enough is not predicted."""
    if run.verl:
        key = "actor_rollout_ref.actor.fsdp_config.offload_policy"
        strategy = run.write("actor_rollout_ref.actor.strategy", "fsdp2")
        yield key, f"{run.write(key, 'true')}  # in the host's memory, with {strategy}"
    elif run.trl:
        yield "accelerate.num_processes", "offload_param_device: cpu  # in accelerate's file, with zero_stage: 3"
    else:
        yield "trainer.model.fsdp_cpu_offload", "fsdp_cpu_offload = true"
