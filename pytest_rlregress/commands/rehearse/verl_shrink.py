"""Which of verl's settings a rehearsal changes, and what isn't rehearsed because of it: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pytest_rlregress.commands.rehearse.shrink import COMPLETION, GENERATIONS, NO_GPU, ChangedValue, Unrehearsed
from pytest_rlregress.fixtures import verl_on_cpu
from pytest_rlregress.fixtures.verl_settings import ACTOR, MODEL, ROLLOUT

REF, CRITIC = "actor_rollout_ref.ref", "critic"
#: Batches between two updates of the weights are at most as many in the rehearsal.
UPDATES = 2
#: Of a mini batch, as many micro batches at most.
PARTS = 2
#: The estimators of advantages that need no critic.
CRITICS = ("gae",)
WHOLE = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
_ON_A_CARD = "pytest --hw=auto tries the stack on a card"
_KEPT = "the ratio of rollouts, mini batches and micro batches is kept"
_SECONDS = "seconds instead of minutes"
_ONE = "the rehearsal has one process"
SMALL = "a small machine"
_ONCE = "once, at the end"
_YOURS = "your folder stays as it is"

#: The value of a dotted key; None where it isn't known.
Get = Callable[[str], Any]


def find_refusal(get: Get, engine: str) -> str:
    """Return why a configuration isn't rehearsed at all; "" if it is."""
    strategy, rollout = str(get(f"{ACTOR}.strategy")), str(get(f"{ROLLOUT}.name"))
    estimator = str(get("algorithm.adv_estimator"))
    mode = str(get("trainer.v1.trainer_mode"))
    reasons = {
        "trainer.use_v1=False isn't rehearsed: verl's V1 trainer is": not get("trainer.use_v1"),
        f"the engine {engine or strategy} isn't rehearsed: it needs GPUs; FSDP is": (
            engine not in ("", "dp") or strategy not in ("fsdp", "fsdp2")
        ),
        f"{ROLLOUT}.name={rollout} isn't rehearsed: vllm is": rollout != "vllm",
        f"algorithm.adv_estimator={estimator} isn't rehearsed: it needs a critic": estimator in CRITICS,
        "a reward model isn't rehearsed: reward functions are": get("reward.reward_model.enable"),
        "LoRA isn't rehearsed with verl": (get(f"{MODEL}.lora_rank") or 0) > 0,
        f"{ROLLOUT}.multi_turn isn't rehearsed with verl": get(f"{ROLLOUT}.multi_turn.enable"),
        f"trainer.v1.trainer_mode={mode} isn't rehearsed: sync is": mode != "sync",
        "distillation isn't rehearsed": get("distillation.enabled"),
        "data.custom_cls isn't rehearsed with verl: its own data set is": get("data.custom_cls.path"),
        "trainer.val_only trains nothing": get("trainer.val_only"),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def find_changes(get: Get, steps: int, folder: str, longest: int, bucket: int = 64) -> list[ChangedValue | Unrehearsed]:
    """Return what a rehearsal changes in a configuration.

    Args:
        get: Its values.
        steps: Of the rehearsal.
        folder: Where the trainer may write.
        longest: Tokens of the longest prompt.
        bucket: Megabytes that hold each weight whole.
    """
    response = min(get("data.max_response_length") or COMPLETION, COMPLETION)
    found: list[ChangedValue | Unrehearsed] = [
        *_places(get, folder),
        *_lengths(get, steps, response),
        *_batch(get, longest + response),
        *_device(get),
        *_engine(get, bucket),
    ]
    return [one for one in found if not (isinstance(one, ChangedValue) and one.old == one.new)]


def _set(get: Get, key: str, new: Any, why: str) -> Iterator[ChangedValue]:
    yield ChangedValue(key, get(key), new, why)


def _places(get: Get, folder: str) -> Iterator[ChangedValue | Unrehearsed]:
    yield from _set(get, "hydra.run.dir", f"{folder}/hydra", _YOURS)
    yield from _set(get, "trainer.default_local_dir", f"{folder}/checkpoints", _YOURS)
    for name in ("rollout_data_dir", "validation_data_dir"):
        if get(f"trainer.{name}"):
            yield from _set(get, f"trainer.{name}", f"{folder}/{name}", _YOURS)
    yield from _set(get, "trainer.default_hdfs_dir", None, "nothing is sent anywhere")
    yield from _set(get, "trainer.logger", ["console", "file"], "nothing is sent to a tracker")
    logger = get("trainer.logger") or []
    trackers = [one for one in ([logger] if isinstance(logger, str) else logger) if one not in ("console", "file")]
    if trackers:
        yield Unrehearsed(f"logging to {', '.join(trackers)}", "nothing is sent anywhere")
    yield from _set(get, "trainer.resume_mode", "disable", "a checkpoint of yours is of the whole model")
    yield Unrehearsed("resuming", "it takes a second start of Ray, trainer and engine; verl-step tests it")
    yield from _set(get, "global_profiler.tool", None, _SECONDS)


def _lengths(get: Get, steps: int, response: int) -> Iterator[ChangedValue | Unrehearsed]:
    yield from _set(get, "trainer.total_training_steps", steps, "the rehearsal's own number")
    yield from _set(
        get, "trainer.total_epochs", max(get("trainer.total_epochs") or 1, steps), "few rows may be few batches"
    )
    yield from _set(get, "trainer.save_freq", steps, f"saved {_ONCE}")
    yield from _set(get, "trainer.test_freq", steps, f"validated {_ONCE}")
    yield from _set(get, "trainer.val_before_train", False, f"validated {_ONCE}")
    for name, off in (("lr_warmup_steps", 0), ("lr_warmup_steps_ratio", 0.0)):
        if (get(f"{ACTOR}.optim.{name}") or 0) > 0:
            why = f"else {steps} steps barely move the weights"
            yield from _set(get, f"{ACTOR}.optim.{name}", off, why)
    longest = get("data.max_response_length")
    yield from _set(get, "data.max_response_length", response, _SECONDS)
    if longest and longest > response:
        yield Unrehearsed(f"responses of {longest} tokens", f"those of the rehearsal have at most {response}")
    if get(f"{ROLLOUT}.max_model_len"):
        room = (get("data.max_prompt_length") or 512) + response
        yield from _set(get, f"{ROLLOUT}.max_model_len", room, "prompt and response")


def _batch(get: Get, tokens: int) -> Iterator[ChangedValue | Unrehearsed]:
    """Keep the ratios: updates of a rollout, micro batches of an update, completions of a prompt."""
    prompts, generations = get("data.train_batch_size") or 1, get(f"{ROLLOUT}.n") or 1
    mini = get(f"{ACTOR}.ppo_mini_batch_size") or prompts
    updates = max(1, min(prompts // mini, UPDATES))
    small = min(generations, GENERATIONS)
    world = (get("trainer.n_gpus_per_node") or 1) * (get("trainer.nnodes") or 1)
    new_mini = 1 if mini == 1 else 2
    rows = new_mini * small
    if prompts % mini:
        what = f"ppo_mini_batch_size {mini}, which train_batch_size {prompts} isn't a multiple of"
        yield Unrehearsed(what, f"the rehearsal has {new_mini} and {new_mini * updates}")
    yield from _set(get, "data.train_batch_size", new_mini * updates, _KEPT)
    yield from _set(get, f"{ACTOR}.ppo_mini_batch_size", new_mini, _KEPT)
    yield from _set(get, f"{ROLLOUT}.n", small, _SECONDS)
    yield from _set(get, "data.gen_batch_size", None, _KEPT)
    if get("data.val_batch_size"):
        yield from _set(get, "data.val_batch_size", 2, _SECONDS)
    micro = get(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or get(f"{ACTOR}.ppo_micro_batch_size")
    parts = max(1, mini * generations // world // micro) if micro else 1
    yield from _micro(get, ACTOR, "use_dynamic_bsz", "ppo", rows // min(parts, PARTS, rows), tokens)
    for owner in (ROLLOUT, REF):
        yield from _micro(get, owner, "log_prob_use_dynamic_bsz", "log_prob", rows, tokens)
    if get("algorithm.filter_groups.enable"):
        why = "a small model's groups rarely have a spread of rewards"
        yield from _set(get, "algorithm.filter_groups.enable", False, why)
        yield Unrehearsed("algorithm.filter_groups", why)


def _micro(get: Get, owner: str, dynamic: str, name: str, rows: int, tokens: int) -> Iterator[ChangedValue]:
    if get(f"{owner}.{dynamic}"):
        yield from _set(get, f"{owner}.{name}_max_token_len_per_gpu", 2 * tokens, "room for two of the small rows")
        return
    yield from _set(get, f"{owner}.{name}_micro_batch_size", None, _KEPT)
    yield from _set(get, f"{owner}.{name}_micro_batch_size_per_gpu", rows, _KEPT)


def _device(get: Get) -> Iterator[ChangedValue | Unrehearsed]:
    cards, nodes = get("trainer.n_gpus_per_node") or 1, get("trainer.nnodes") or 1
    yield from _set(get, "trainer.n_gpus_per_node", 1, _ONE)
    yield from _set(get, "trainer.nnodes", 1, _ONE)
    if cards * nodes > 1:
        yield Unrehearsed(f"{cards * nodes} processes", f"the rehearsal has one; {_ON_A_CARD}")
    for owner in (ACTOR, REF):
        yield from _set(get, f"{owner}.strategy", "fsdp2", NO_GPU)
        yield from _set(get, f"{owner}.fsdp_config.strategy", "fsdp2", NO_GPU)
        yield from _set(get, f"{owner}.fsdp_config.mixed_precision", WHOLE, NO_GPU)
        yield from _set(get, f"{owner}.fsdp_config.model_dtype", "fp32", NO_GPU)
        for name in ("use_torch_compile", "fsdp_config.use_torch_compile"):
            yield from _set(get, f"{owner}.{name}", False, NO_GPU)
        for name in ("fsdp_config.param_offload", "fsdp_config.optimizer_offload", "fsdp_config.offload_policy"):
            yield from _set(get, f"{owner}.{name}", False, NO_GPU)
        for name in ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size"):
            yield from _set(get, f"{owner}.{name}", 1, _ONE)
    yield Unrehearsed("bfloat16", f"{NO_GPU}: the rehearsal computes in float32; {_ON_A_CARD}")
    for name in ("use_liger", "use_fused_kernels", "enable_activation_offload", "use_shm"):
        if get(f"{MODEL}.{name}"):
            yield from _set(get, f"{MODEL}.{name}", False, NO_GPU)
            yield Unrehearsed(f"{MODEL}.{name}", f"{NO_GPU}; {_ON_A_CARD}")
    yield from _set(get, f"{MODEL}.override_config.attn_implementation", "sdpa", NO_GPU)


def _engine(get: Get, bucket: int) -> Iterator[ChangedValue | Unrehearsed]:
    for name in ("tensor_model_parallel_size", "data_parallel_size", "expert_parallel_size"):
        size = get(f"{ROLLOUT}.{name}") or 1
        yield from _set(get, f"{ROLLOUT}.{name}", 1, "the engine has one process")
        if size > 1:
            yield Unrehearsed(f"{ROLLOUT}.{name} {size}", f"the engine has one process; {_ON_A_CARD}")
    yield from _set(get, f"{ROLLOUT}.dtype", "float32", "vLLM computes in float32 on a CPU")
    room = (get("data.max_prompt_length") or 512) + COMPLETION
    most = max(1024, room)
    yield from _set(get, f"{ROLLOUT}.max_num_batched_tokens", most, "memory for the engine's cache")
    yield from _set(get, f"{ROLLOUT}.max_num_seqs", min(get(f"{ROLLOUT}.max_num_seqs") or 64, 64), "a small batch")
    yield from _set(get, f"{ROLLOUT}.calculate_log_probs", True, "so that engine and trainer are compared")
    key = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
    yield from _set(get, key, bucket, "a small model")
    for key in (f"{ROLLOUT}.agent.num_workers", "reward.num_workers", "data.filter_overlong_prompts_workers"):
        yield from _set(get, key, 1, SMALL)
    yield from _set(get, "data.dataloader_num_workers", 0, SMALL)
    yield from _set(get, "transfer_queue.backend.SimpleStorage.num_data_storage_units", 1, SMALL)
    yield from _set(get, "ray_kwargs.ray_init.include_dashboard", False, SMALL)
    yield from _set(get, "ray_kwargs.ray_init.object_store_memory", 500_000_000, SMALL)
    for key, value in verl_on_cpu.SETTINGS.items():
        yield from _set(get, key, value, NO_GPU)
