"""By what keys each trainer's configuration says what the rules ask for."""

from __future__ import annotations

from dataclasses import dataclass


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
