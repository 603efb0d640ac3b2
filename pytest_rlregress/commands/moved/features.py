"""Which moved defaults concern a run, and how much: meaning before memory before speed, what is off not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_rlregress.commands.moved.findings import Finding
from pytest_rlregress.stack.class_sources import UNKNOWN

_MEANING = re.compile(
    r"loss|adv|beta|epsilon|clip|kl|temperature|top_[pk]|min_p|reward|scale|mask|import|correct|cap\b|lr|learning|"
    r"optim|seed|filter|use_v1|log_probs|truncat|length|chat|num_generations|steps_per|batch_size|sync|shuffle|mode|"
    r"algorithm|router|bias|warmup|decay|momentum|stop|penalty|dtype|precision|remove_padding|metric"
)
_MEMORY = re.compile(r"mem|offload|max_num|batched|utili[sz]|checkpointing|gpus|nodes|cache|shard|n_gpu|_len\b")
# Nothing that a run's outcome depends on.
_ASIDE = re.compile(r"profiler|_target_|\bnpu\b|nsys|tool_config|global_profiler|transfer_queue|ray_kwargs|prometheus")

# verl: what a part of the configuration is read for, as a pattern of keys and a condition on values.
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def weigh_verl(finding: Finding, values: Mapping[str, Any]) -> Finding:
    """Say whether a moved default of verl's concerns a run with these values, and where it stands."""
    off = _find_off(finding.key, values)
    concerns = finding.concerns and not off and not _ASIDE.search(finding.key)
    why = "; ".join(filter(None, (finding.why, off and f"off: {off}")))
    return replace(finding, concerns=concerns, rank=find_rank(finding.key), why=why)


def _find_off(key: str, values: Mapping[str, Any]) -> str:
    """Return the switch that turns off what a key is for; "" if none is known to."""
    parts = key.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        for switch in ("enable", "enabled"):
            one = ".".join([*parts[:depth], switch])
            if one != key and values.get(one) is False:
                return one
    estimator = str(values.get("algorithm.adv_estimator"))
    of_critic = parts[0] == "critic" and key != "critic.enable" and values.get("critic.enable") is not True
    if of_critic and estimator not in ("gae", "AdvantageEstimator.GAE", "None"):
        return f"algorithm.adv_estimator={estimator} has no critic"
    if parts[0] in ("reward_model", "reward") and "reward_model" in parts:
        switches = [values.get(one) for one in ("reward.reward_model.enable", "reward_model.enable")]
        if True not in switches:
            return "reward_model.enable"
    for engine in ("megatron", "veomni", "torchtitan", "mindspeed"):
        if engine in parts and values.get(f"{_ACTOR}.strategy") not in (engine, UNKNOWN):
            return f"{_ACTOR}.strategy"
    if "lora" in parts and not values.get("actor_rollout_ref.model.lora.rank"):
        return "actor_rollout_ref.model.lora.rank"
    reads_reference = (f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")
    if key.startswith("actor_rollout_ref.ref.") and all(values.get(one) is False for one in reads_reference):
        return f"{_ACTOR}.use_kl_loss"
    for mode in ("separate_async", "colocate_async"):
        if mode in parts and values.get("trainer.v1.trainer_mode") != mode:
            return "trainer.v1.trainer_mode"
    return ""


# TRL: prefix of a field -> the field that switches it on.
_SWITCHES = {
    "vllm_": "use_vllm",
    "lora_": "use_peft",
    "hub_": "push_to_hub",
    "liger_": "use_liger_kernel",
    "teacher_model_server": "use_teacher_server",
    "router_aux_loss": "output_router_logits",
}


def weigh_trl(finding: Finding, values: Mapping[str, Any]) -> Finding:
    """Say whether a moved default of TRL's concerns a run with these values, and where it stands."""
    switches = (switch for prefix, switch in _SWITCHES.items() if finding.key.startswith(prefix))
    off = next((switch for switch in switches if values.get(switch) in (False, None) and switch in values), "")
    why = "; ".join(filter(None, (finding.why, off and f"off: {off}")))
    return replace(finding, concerns=finding.concerns and not off, rank=find_rank(finding.key), why=why)


def find_rank(key: str) -> int:
    """Return where a default stands: 0 for what changes meaning, 1 memory, 2 speed and all else."""
    name = key.rpartition(".")[2]
    if _MEMORY.search(name):
        return 1
    return 0 if _MEANING.search(name) else 2
