"""What would make a trainer fit that does not: the ways that are predicted to be enough, the smallest change first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_rlregress.commands.preflight.batch_sizes import cuts_evenly, largest_micro_batch
from pytest_rlregress.commands.preflight.document import RuleContext
from pytest_rlregress.commands.preflight.model_size import SIZES, model_with
from pytest_rlregress.commands.preflight.training import Training

MOST_CARDS = 1024
_NODE = 8  # cards of a usual node


def ways_to_fit(run: RuleContext, training: Training, left: int) -> tuple[str, str]:
    """Return the key to change and what to write, with what else would be enough in comments below it.

    Args:
        run: The run that is checked.
        training: Its training.
        left: Bytes of each card that the trainer may take.
    """
    found = list(_enough(run, training, left))
    if not found:
        return run.config.keys.model, f"a smaller model: none of {SIZES[0][0]}B and more fits on cards of this size"
    (key, first), *others = found
    return key, "\n".join([first, *(f"# or: {other}" for _, other in others[:3])])


def _enough(run: RuleContext, training: Training, left: int) -> Iterator[tuple[str, str]]:
    thrifty = replace(training, checkpointing=True)
    key, text = run.config.keys.checkpointing
    recompute = "" if training.checkpointing else f"{text or run.config.write(key, 'true')}\n"
    if recompute and thrifty.peak() <= left:
        yield key, recompute.strip()
        return
    for key, text in _changes(run, thrifty, left):
        yield key, f"{recompute}{text}"
        recompute = ""


def _changes(run: RuleContext, thrifty: Training, left: int) -> Iterator[tuple[str, str]]:
    yield from _fewer_tokens(run, thrifty, left)
    if not thrifty.lora_rank and replace(thrifty, lora_rank=8).peak() <= left:
        key, text = run.config.keys.lora
        yield key, text or run.config.write(key, "true" if run.trl else 8)
    offload = [] if thrifty.lora_rank else list(_offload(run))
    if not (run.verl or run.trl):  # prime-rl's was seen to be enough for 20B on one card of 48 GiB
        yield from offload
    yield from _more_cards(run, thrifty, left)
    if run.verl or run.trl:
        yield from offload
    fits = [size for size, parameters, *_ in SIZES if replace(thrifty, model=model_with(parameters)).peak() <= left]
    if fits and fits[-1] * 1e9 < thrifty.model.parameters:
        yield run.config.keys.model, f"a smaller model, of at most {fits[-1]:g}B parameters"


def _fewer_tokens(run: RuleContext, thrifty: Training, left: int) -> Iterator[tuple[str, str]]:
    def fits(tokens: int) -> bool:
        return replace(thrifty, tokens=tokens).peak() <= left

    least = max(thrifty.least_tokens, 1)
    if least >= thrifty.tokens or not fits(least):
        return
    sequences = max(count for count in range(1, thrifty.tokens // least + 1) if fits(count * least))
    if run.verl and run.config.get("actor_rollout_ref.actor.use_dynamic_bsz"):
        key, value = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", sequences * least
    elif run.verl:
        key, value = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", largest_micro_batch(run.config, sequences)
    else:
        key, value = "per_device_train_batch_size", largest_micro_batch(run.config, sequences)
    yield key, run.config.write(key, value)


def _more_cards(run: RuleContext, thrifty: Training, left: int) -> Iterator[tuple[str, str]]:
    enough = [cards for cards in range(thrifty.cards, MOST_CARDS) if replace(thrifty, cards=cards).peak() <= left]
    if not enough:
        return
    even = (
        cards for cards in enough if cuts_evenly(run.config, cards if cards <= _NODE else -(-cards // _NODE) * _NODE)
    )
    cards = next(even, enough[0])
    if run.verl:
        nodes = -(-cards // _NODE)
        key, value = ("trainer.nnodes", nodes) if cards > _NODE else ("trainer.n_gpus_per_node", cards)
        yield key, run.config.write(key, value) + (f" with {_NODE} cards each" if cards > _NODE else "")
    elif run.trl:
        shards = "" if thrifty.cards > 1 else " with FSDP or ZeRO-3 (accelerate_config: zero3)"
        yield "accelerate.num_processes", f"{cards} processes{shards}"
    else:
        yield "trainer_gpu_ids", f"trainer_gpu_ids with {cards} cards"


def _offload(run: RuleContext) -> Iterator[tuple[str, str]]:
    """Yield how the trainer's state is kept in the host's memory, of which how much is enough is not predicted."""
    if run.verl:
        table = "actor_rollout_ref.actor"
        policy = run.config.write(f"{table}.fsdp_config.offload_policy", "true")
        yield f"{table}.fsdp_config.offload_policy", f"{policy}, with strategy fsdp2: in the host's memory"
    elif run.trl:
        yield "accelerate.num_processes", "accelerate_config: zero3 with offload_param_device: cpu"
    else:
        yield "trainer.model.fsdp_cpu_offload", "fsdp_cpu_offload = true"
