"""Rules of preflight about memory: whether trainer and engine fit on the card.

Predicted is less rather than more, so that what is found to be too much is too much.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_rlregress import remedies
from pytest_rlregress.commands.preflight.document import RuleContext, Unchecked
from pytest_rlregress.commands.preflight.training import Training, engine_sleeps, on_one_card, training_of
from pytest_rlregress.commands.preflight.ways import ways_to_fit
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.units import GIB

_NO_CARD = ("--hw",)


def gpu_memory_utilization(run: RuleContext) -> Iterator[Advice | Unchecked]:
    """An engine that asks, when it starts, for more of the card than the trainer leaves."""
    key, default = run.config.keys.share
    asked = run.config.number(key, default)
    if not on_one_card(run):
        return
    if asked is None:
        yield Unchecked(f"{key}: not known here", (key,))
        return
    if not run.memory_bytes:
        yield Unchecked(f"{run.profile.title} says nothing of GPU memory: give --hw", _NO_CARD)
        return
    training = training_of(run)
    held = _held(run, training)
    if asked <= _share_limit(run, training) or _too_large(run, training):  # of which trainer-engine-oom tells
        return
    total = run.memory_bytes / GIB
    why = f"the engine asks for {asked:g} of {total:.0f} GiB, and shares the card with the trainer"
    why += f", whose weights take {held / GIB:.0f} GiB" if held else ""
    if share := _share_beside(run, training):
        yield Advice(key, why, run.config.write(key, share))
    elif isinstance(training, Training):
        lacking = (held if engine_sleeps(run) else training.peak()) + _engine_weights(run, training) - run.memory_bytes
        why += f": both need {lacking / GIB:.0f} GiB more"
        yield Advice(key, why, ways_to_fit(run, training, run.memory_bytes - _engine_weights(run, training))[1])


def trainer_engine_oom(run: RuleContext) -> Iterator[Advice | Unchecked]:
    """A trainer whose step needs more than an engine leaves that was able to start."""
    training = training_of(run)
    if isinstance(training, Unchecked) or training.doubt:
        yield training if isinstance(training, Unchecked) else training.doubt or Unchecked("")
        return
    if not run.memory_bytes:
        yield Unchecked(f"{run.profile.title} says nothing of GPU memory: give --hw", _NO_CARD)
        return
    share = 0.0
    if on_one_card(run):
        asked = run.config.number(*run.config.keys.share) or 0
        if asked > _share_limit(run, training) and not _too_large(run, training):
            return
        share = 0 if engine_sleeps(run) else asked
    left = int(run.memory_bytes * (1 - share))
    if (needed := training.peak()) > left:
        engine = f", of which the engine has {share:g}" if share else ""
        why = f"a step of the trainer needs about {needed / GIB:.0f} GiB of {run.memory_bytes / GIB:.0f}{engine}: "
        yield Advice(*_remedy(run, training, left, f"{why}{_amount(needed - left)} too much"))


def _remedy(run: RuleContext, training: Training, left: int, why: str) -> tuple[str, str, str]:
    """Return key, why and what to write: a smaller share of the engine if that is enough, else what the trainer can."""
    key, instead = ways_to_fit(run, training, left)
    if left < run.memory_bytes and key != run.config.keys.checkpointing[0]:
        if share := _share_beside(run, training):
            return run.config.keys.share[0], why, run.config.write(run.config.keys.share[0], share)
        return key, why, ways_to_fit(run, training, run.memory_bytes - _engine_weights(run, training))[1]
    return key, why, instead


def _held(run: RuleContext, training: Training | Unchecked) -> int:
    """Return the bytes that the trainer holds when the engine starts, as far as that is known."""
    offloaded = run.config.get("actor_rollout_ref.actor.fsdp_config.param_offload") is True
    return 0 if isinstance(training, Unchecked) or offloaded else training.weights()


def _too_large(run: RuleContext, training: Training | Unchecked) -> bool:
    """Return whether the trainer alone is too large for the card."""
    return isinstance(training, Training) and not training.doubt and training.peak() > run.memory_bytes


def _share_limit(run: RuleContext, training: Training | Unchecked) -> float:
    """Return the largest share that the engine can start with."""
    held = _held(run, training)
    if engine_sleeps(run) or run.trl:
        return 1 - held / run.memory_bytes
    try:
        return remedies.engine_memory_share(run.memory_bytes, held)
    except ValueError:  # the trainer does not fit, with or without an engine
        return remedies.engine_memory_share(run.memory_bytes, 0)


def _share_beside(run: RuleContext, training: Training | Unchecked) -> float | None:
    """Return the largest share that leaves the trainer's step enough; None if the engine's weights do not fit in it."""
    reserved = 0
    if isinstance(training, Training):
        reserved = training.weights() if engine_sleeps(run) or training.doubt else training.peak()
    try:
        share = remedies.engine_memory_share(run.memory_bytes, reserved)
    except ValueError:
        return None
    return share if share * run.memory_bytes > _engine_weights(run, training) else None


def _engine_weights(run: RuleContext, training: Training | Unchecked) -> int:
    """Return the bytes of the engine's own weights on a card, in 16 bits."""
    spread = run.config.number(run.config.keys.tensor_parallel, 1) or 1
    return 0 if isinstance(training, Unchecked) else int(2 * training.model.parameters / spread)


def _amount(size: int) -> str:
    return f"{size / GIB:.0f} GiB" if size > 10 * GIB else f"{size / GIB:.1f} GiB"
