"""Facts of each trainer: its names for what rules ask for, and the keys and values that are compared where the trainer
can't be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Schema:
    """The keys and values that a trainer takes.

    Attributes:
        source: Whose keys these are: ``verl 0.9.1``.
        complete: Whether they are all there are, and not only those that preflight reads.
        keys: Dotted, tables among them.
        tables: Those of the keys that hold further keys, all of which are known.
        fields: By table, those that its dataclass takes besides; a table with one refuses others.
        values: By key, the texts that are allowed.
        defaults: By key, as far as they are known.
        folder: Where the trainer's source is.
        why_incomplete: Why they aren't all there are.
    """

    source: str = ""
    complete: bool = False
    keys: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    why_incomplete: str = ""


def known_schema(trainer: str, why: str = "") -> Schema:
    """Return what preflight knows of a trainer that can't be asked, and why it can't."""
    tables = {table: names.split() for table, names in KEYS[trainer].items()}
    keys = {f"{table}.{name}".lstrip(".") for table, names in tables.items() for name in names}
    named = frozenset(table for table in tables if table)
    values = {key: tuple(texts.split()) for key, texts in VALUES[trainer].items()}
    source = f"preflight's own list for {trainer}"
    return Schema(source, False, frozenset(keys | named), named, values=values, why_incomplete=why)


@dataclass(frozen=True)
class TrainerKeys:
    """The dotted keys of one trainer.

    Attributes:
        sections: A configuration with none of them is something else.
        share: The engine's share of a card's memory, and its default.
        completion: The longest completion, in tokens.
        context: The engine's longest sequence, in tokens.
        prompt: The longest prompt, in tokens; "" where nothing says it.
        tensor_parallel: Over how many cards the engine spreads its weights.
        attention: Which attention the trainer's model uses, and its default.
        checkpointing: What recomputes activations, what to write for it, and its default.
        lora: LoRA's key, and what to write for it.
    """

    sections: tuple[str, ...]
    model: str
    share: tuple[str, float]
    completion: str
    context: str
    prompt: str
    tensor_parallel: str
    attention: tuple[str, str]
    checkpointing: tuple[str, str]
    lora: tuple[str, str]


_ROLLOUT, _MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"

TRAINERS = {
    "verl": TrainerKeys(
        sections=("actor_rollout_ref", "data", "trainer", "critic"),
        model=f"{_MODEL}.path",
        share=(f"{_ROLLOUT}.gpu_memory_utilization", 0.5),
        completion="data.max_response_length",
        context=f"{_ROLLOUT}.max_model_len",
        prompt="data.max_prompt_length",
        tensor_parallel=f"{_ROLLOUT}.tensor_model_parallel_size",
        attention=(f"{_MODEL}.override_config.attn_implementation", "flash_attention_2"),
        checkpointing=(f"{_MODEL}.enable_gradient_checkpointing", ""),
        lora=(f"{_MODEL}.lora_rank", ""),
    ),
    "prime-rl": TrainerKeys(
        sections=("trainer", "orchestrator", "inference", "model"),
        model="model.name",
        share=("inference.gpu_memory_utilization", 0.9),
        completion="orchestrator.sampling.max_tokens",
        context="inference.model.max_model_len",
        prompt="",
        tensor_parallel="inference.parallel.tp",
        attention=("trainer.model.attn", "flash_attention_2"),
        checkpointing=("trainer.model.ac", "ac = { freq = 1 }"),
        lora=("trainer.model.lora", "lora = { rank = 8, alpha = 32 }"),
    ),
    "trl": TrainerKeys(
        sections=(),
        model="model_name_or_path",
        share=("vllm_gpu_memory_utilization", 0.3),
        completion="max_completion_length",
        context="vllm_max_model_length",
        prompt="max_prompt_length",  # until TRL 0.26
        tensor_parallel="vllm_tensor_parallel_size",
        attention=("attn_implementation", "sdpa"),
        checkpointing=("gradient_checkpointing", ""),
        lora=("use_peft", ""),
    ),
}

# Keys and values that preflight itself reads, and their neighbours: what is compared where no trainer is installed.
KEYS = {
    "verl": {
        "algorithm": "adv_estimator gamma lam use_kl_in_reward kl_penalty norm_adv_by_std_in_grpo",
        "data": "train_files val_files train_batch_size max_prompt_length max_response_length prompt_key truncation "
        "filter_overlong_prompts shuffle seed return_raw_chat",
        "actor_rollout_ref": "hybrid_engine actor model ref rollout",
        "actor_rollout_ref.model": "path override_config enable_gradient_checkpointing use_remove_padding use_liger "
        "lora_rank lora_alpha target_modules use_fused_kernels trust_remote_code external_lib",
        "actor_rollout_ref.actor": "strategy optim fsdp_config policy_loss ppo_mini_batch_size ppo_micro_batch_size "
        "ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu loss_agg_mode use_kl_loss kl_loss_coef "
        "kl_loss_type entropy_coeff clip_ratio clip_ratio_low clip_ratio_high ppo_epochs grad_clip "
        "ulysses_sequence_parallel_size",
        "actor_rollout_ref.actor.fsdp_config": "param_offload optimizer_offload offload_policy model_dtype fsdp_size",
        "actor_rollout_ref.rollout": "name n gpu_memory_utilization tensor_model_parallel_size max_model_len "
        "max_num_batched_tokens max_num_seqs enforce_eager free_cache_engine temperature top_p top_k dtype load_format "
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu enable_chunked_prefill",
        "trainer": "n_gpus_per_node nnodes total_epochs total_training_steps logger project_name experiment_name "
        "save_freq test_freq val_before_train resume_mode default_local_dir critic_warmup",
    },
    "prime-rl": {
        "": "inference_gpu_ids trainer_gpu_ids max_steps model wandb trainer orchestrator inference ckpt",
        "trainer.model": "name seq_len ac lora attn fsdp_cpu_offload compile",
        "orchestrator": "batch_size rollouts_per_example seq_len sampling buffer env",
        "orchestrator.sampling": "max_tokens temperature seed",
        "inference": "gpu_memory_utilization model parallel",
        "inference.model": "name max_model_len enforce_eager",
    },
    "trl": {
        "": "model_name_or_path dataset_name dataset_config output_dir learning_rate num_train_epochs max_steps "
        "bf16 fp16 per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
        "gradient_checkpointing num_generations max_completion_length max_prompt_length use_vllm vllm_mode "
        "vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size vllm_enable_sleep_mode "
        "vllm_server_host vllm_server_port beta epsilon epsilon_high loss_type scale_rewards use_peft lora_r "
        "lora_alpha attn_implementation dtype torch_dtype warmup_steps warmup_ratio lr_scheduler_type "
        "report_to logging_steps save_steps save_strategy seed temperature",
    },
}
VALUES = {
    "verl": {
        "algorithm.adv_estimator": "gae grpo gpg opo rloo remax reinforce_plus_plus reinforce_plus_plus_baseline",
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean seq-mean-token-sum seq-mean-token-mean "
        "seq-mean-token-sum-norm",
        "actor_rollout_ref.rollout.name": "vllm sglang",
    },
    "prime-rl": {},
    "trl": {
        "vllm_mode": "colocate server",
        "loss_type": "grpo bnpo dr_grpo dapo cispo",
        "scale_rewards": "group batch none",
    },
}
