"""Rule of preflight about values that a trainer refuses together as it starts, each as its own code asserts it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from pytest_rlregress.commands.preflight.batch_sizes import has_critic, largest_micro_batch
from pytest_rlregress.commands.preflight.config import PlannedRun, Unchecked
from pytest_rlregress.remedies.advice import Advice

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_RESUME = "trainer.resume_from_path"
_FILTER = "algorithm.filter_groups"
#: Samples of a micro batch that are proposed where none is given, at most.
_SAMPLES = 8
_UNKNOWN = object()


def refused_values(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Values that the trainer refuses together."""
    if run.trl:
        yield from _check_evaluation(run)
        yield from _check_engines(run)
        yield from _check_reference(run)
        yield from _check_padding_free(run)
    elif run.verl and "actor_rollout_ref" in run.tree:
        yield from _check_micro_batches(run)
        yield from _check_padding(run)
        yield from _check_filter(run)
        yield from _check_resume(run)
        yield from _check_sampling(run)


def _find(run: PlannedRun, key: str) -> Any:
    """Return a key's value, the trainer's own where none is given; ``_UNKNOWN`` where neither is known."""
    if run.hides(key):
        return _UNKNOWN
    given = run.get(key, _UNKNOWN)
    return run.schema.defaults.get(key, _UNKNOWN) if given is _UNKNOWN else given


def _check_micro_batches(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield micro batches of which verl has no size, or two."""
    if _find(run, f"{_ACTOR}.use_dynamic_bsz") is not False:
        return
    keys = {f"{_ACTOR}.ppo_micro_batch_size": True, f"{_ROLLOUT}.log_prob_micro_batch_size": True}
    keys["critic.ppo_micro_batch_size"] = has_critic(run) and not run.get("critic.use_dynamic_bsz", False)
    with_reference = run.get(f"{_ACTOR}.use_kl_loss") or run.get("algorithm.use_kl_in_reward")
    keys[f"{_REF}.log_prob_micro_batch_size"] = bool(with_reference)
    for key, is_used in keys.items():
        for_all, for_each = run.get(key), _find(run, f"{key}_per_gpu")
        if not is_used or run.hides(key) or for_each is _UNKNOWN:
            continue
        if for_all is None and for_each is None and run.program and not run.program.startswith("verl."):
            yield Unchecked(f"{key}_per_gpu has no value here: whether the program gives it one is not known")
        elif for_all is None and for_each is None:
            why = "micro batches have no size, and their tokens aren't counted (use_dynamic_bsz): verl asks for one"
            samples = largest_micro_batch(run, _SAMPLES)
            yield Advice(f"{key}_per_gpu", why, run.write(f"{key}_per_gpu", samples))
        elif for_all is not None and for_each is not None:
            why = f"{key} and {key}_per_gpu are both given, and verl refuses the first beside the second"
            yield Advice(key, why, run.write(key, "null"))


def _check_padding(run: PlannedRun) -> Iterator[Advice]:
    """Yield sequences that Ulysses would cut with their padding."""
    spread = run.number(f"{_ACTOR}.ulysses_sequence_parallel_size", 1) or 1
    key = "actor_rollout_ref.model.use_remove_padding"
    if spread > 1 and run.get(f"{_ACTOR}.strategy", "fsdp") in ("fsdp", "fsdp2") and _find(run, key) is False:
        why = f"{_ACTOR}.ulysses_sequence_parallel_size is {spread:g}, for which verl asks that padding is removed"
        yield Advice(key, why, run.write(key, "true"))


def _check_filter(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield groups that are filtered (DAPO) by no metric, or by one that comes too late."""
    if run.get(f"{_FILTER}.enable") is not True or run.get("trainer.use_v1", True) is False:
        return
    metric, pool = f"{_FILTER}.metric", "reward.reward_model.enable_resource_pool"
    lacks_metric = _find(run, metric) in (None, "")  # verl's own is reward
    comes_late = run.get("reward.reward_model.enable") is True and _find(run, pool) is False
    if not (lacks_metric or comes_late):
        return
    is_known = run.is_release("verl", ">=0.9")
    if is_known is None:
        yield Unchecked(
            "from 0.9 on verl asks what groups are filtered by, and which verl the run has isn't known here"
        )
    elif is_known and lacks_metric:
        why = f"{_FILTER}.enable without a metric: verl asks for one, such as reward, or a key that the reward returns"
        yield Advice(metric, why, run.write(metric, "reward"))
    elif is_known:
        why = "groups are filtered as they are sampled, and a reward model on the trainer's cards scores them later"
        yield Advice(pool, why, run.write(pool, "true"))


def _check_resume(run: PlannedRun) -> Iterator[Advice]:
    """Yield a checkpoint that isn't one step's."""
    path = _find(run, _RESUME)
    if run.get("trainer.resume_mode") != "resume_path" or path is _UNKNOWN:
        return
    if not isinstance(path, str):
        why = "resume_mode = resume_path, and resume_from_path names no checkpoint"
        yield Advice("trainer.resume_mode", why, run.write("trainer.resume_mode", "auto"))
    elif "global_step_" not in path:
        why = f"{path} isn't a step's folder: verl asks for one that is called global_step_ and its number"
        yield Advice(_RESUME, why, run.write(_RESUME, os.path.join(path, _name_last_step(path))))


def _name_last_step(folder: str) -> str:
    steps = [re.fullmatch(r"global_step_(\d+)", name) for name in os.listdir(folder)] if os.path.isdir(folder) else []
    numbers = [int(step[1]) for step in steps if step]
    return f"global_step_{max(numbers)}" if numbers else "global_step_…"


def _check_sampling(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield a validation that samples at temperature 0, and the rollout's mode that is gone."""
    key = f"{_ROLLOUT}.temperature"
    if run.get(f"{_ROLLOUT}.val_kwargs.do_sample") is True and run.number(key) == 0:
        why = f"validation samples (val_kwargs.do_sample), for which verl asks for a {key} above 0"
        yield Advice(key, why, run.write(key, "1.0"))
    mode = f"{_ROLLOUT}.mode"
    if run.get(mode) == "sync":
        is_known = run.is_release("verl", ">=0.9")
        if is_known is None:
            yield Unchecked(f"{mode} = sync is gone from verl 0.9 on, and which verl the run has isn't known here")
        elif is_known:
            yield Advice(mode, "verl has no rollout in this mode any more, and refuses it", run.write(mode, "async"))


def _check_evaluation(run: PlannedRun) -> Iterator[Advice]:
    """Yield batches of an evaluation that aren't whole groups."""
    generations = run.number("num_generations_eval") or run.number("num_generations")
    processes, batch = run.number("accelerate.num_processes"), run.number("per_device_eval_batch_size", 8)
    if run.get("eval_strategy", "no") in ("no", None) or not (generations and processes and batch):
        return
    if batch * processes % generations:
        key = "per_device_eval_batch_size"
        why = f"an evaluation has {batch * processes:g} samples at once, which aren't whole groups of {generations:g}"
        nearest = next(one for one in range(int(batch), int(batch + generations)) if one * processes % generations == 0)
        yield Advice(key, why, run.write(key, nearest))


def _check_engines(run: PlannedRun) -> Iterator[Advice]:
    """Yield processes that can't be cut into engines."""
    spread, processes = run.number(run.keys.tensor_parallel, 1), run.number("accelerate.num_processes")
    if run.get("use_vllm") and _find(run, "vllm_mode") == "colocate" and spread and processes and processes % spread:
        key = run.keys.tensor_parallel
        why = f"{processes:g} processes can't be cut into engines of {spread:g}, as TRL asks"
        even = next(one for one in range(int(spread), 0, -1) if processes % one == 0)
        yield Advice(key, why, run.write(key, even))


def _check_reference(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield a reference model that is to be synchronized, and isn't there."""
    if run.get("sync_ref_model") is not True:
        return
    beta, adapts = _find(run, "beta"), run.get("use_peft") is True
    if beta == 0 or adapts:
        lacks = "there is no reference model with beta = 0" if beta == 0 else "with an adapter there is no second model"
        is_known = run.is_release("trl", ">=1.16")
        if is_known is None:
            yield Unchecked(f"sync_ref_model, and {lacks}: whether TRL refuses it depends on its release")
        elif is_known:
            why = f"{lacks}, which TRL could synchronize: it refuses sync_ref_model"
            yield Advice("sync_ref_model", why, run.write("sync_ref_model", "false"))


def _check_padding_free(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield rows without padding that nothing would cut."""
    if run.program != "trl sft" or run.get("padding_free") is not True or _find(run, "packing") is not False:
        return
    longest = _find(run, "max_length")
    if longest is _UNKNOWN or longest is None:
        return
    is_known = run.is_release("trl", ">=1.16")
    if is_known is None:
        yield Unchecked("padding_free without packing: whether TRL refuses max_length with it depends on its release")
    elif is_known:
        why = f"padding_free without packing doesn't cut rows at max_length = {longest}: TRL refuses both together"
        yield Advice("packing", why, run.write("packing", "true"))
