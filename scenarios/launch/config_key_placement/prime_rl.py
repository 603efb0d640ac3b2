"""A stand-in for prime-rl's configuration: the part that the documented runs use, as of 2025-12, without extra keys.

prime-rl is installed from source only; where it is, its own classes are tested too.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model


def table(name: str, /, **fields: Any) -> type[BaseModel]:
    """Make a table that refuses a key it doesn't know; a field is its type and its default, ``...`` for none."""
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def optional(of: Any) -> tuple[Any, None]:
    """Make a field that may be left out."""
    return of | None, None


COUNT = Field(default=1, ge=1)
AC = table("ActivationCheckpointConfig", freq=(int, COUNT))
LORA = table(
    "LoRAConfig",
    rank=(int, Field(default=16, ge=1)),
    alpha=(float, Field(default=32.0, ge=0)),
    dropout=(float, Field(default=0.0, ge=0, le=1)),
    target_modules=(list[str], []),
)
TRAINER_MODEL = table(
    "TrainerModelConfig",
    name=(str, "Qwen/Qwen3-0.6B"),
    seq_len=(int, 2048),
    attn=(str, "flash_attention_2"),
    fsdp_cpu_offload=(bool, False),
    ac=optional(AC),
    lora=optional(LORA),
)
# Training draws from the whole distribution: no top_p, top_k or min_p.
SAMPLING: dict[str, Any] = {
    "temperature": (float, Field(default=1.0, ge=0)),
    "repetition_penalty": (float, Field(default=1.0, ge=0)),
    "max_tokens": optional(int),
    "min_tokens": (int, Field(default=0, ge=0)),
    "seed": optional(int),
}
EVAL_SAMPLING = {**SAMPLING, "top_p": optional(float), "top_k": optional(int), "min_p": optional(float)}
BUFFER = table(
    "BufferConfig",
    seed=optional(int),
    easy_threshold=optional(float),
    hard_threshold=optional(float),
    online_difficulty_filtering=(bool, False),
)
ENV = table("EnvConfig", id=(str, "reverse-text"), name=optional(str), args=(dict[str, Any], {}))
EVAL = table("EvalConfig", env=(list[ENV], [ENV()]), sampling=optional(table("EvalSamplingConfig", **EVAL_SAMPLING)))  # type: ignore[valid-type]
ORCHESTRATOR = table(
    "OrchestratorConfig",
    batch_size=(int, 128),
    rollouts_per_example=(int, COUNT),
    oversampling_factor=(float, Field(default=1.0, ge=1)),
    seq_len=(int, 2048),
    sampling=optional(table("SamplingConfig", **SAMPLING)),
    buffer=optional(BUFFER),
    env=(list[ENV], [ENV()]),  # type: ignore[valid-type]
    eval=optional(EVAL),
)
INFERENCE_MODEL = table(
    "InferenceModelConfig",
    name=(str, "Qwen/Qwen3-0.6B"),
    enforce_eager=(bool, False),
    max_model_len=optional(int),
    enable_auto_tool_choice=(bool, False),
    tool_call_parser=optional(str),
)
GPU_SHARE = Field(default=0.9, gt=0, le=1)
RLConfig = table(
    "RLConfig",
    trainer=(table("TrainerConfig", model=(TRAINER_MODEL, TRAINER_MODEL()), optim=(dict[str, Any], {})), ...),
    orchestrator=(ORCHESTRATOR, ...),
    inference=optional(
        table("InferenceConfig", model=optional(INFERENCE_MODEL), gpu_memory_utilization=(float, GPU_SHARE))
    ),
    model=optional(table("SharedModelConfig", name=(str, "Qwen/Qwen3-0.6B"))),
    wandb=optional(dict[str, Any]),
    inference_gpu_ids=(list[int], [0]),
    trainer_gpu_ids=(list[int], [1]),
    max_steps=optional(int),
)
