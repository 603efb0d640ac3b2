"""A stand-in for prime-rl's configuration: the part that the documented runs use, as of 2025-12, without extra keys.

prime-rl is installed from source only; where it is, its own classes are tested too.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """A table that refuses a key it does not know."""

    model_config = ConfigDict(extra="forbid")


class ActivationCheckpointConfig(Strict):
    """``[trainer.model.ac]``."""

    freq: int = Field(default=1, ge=1)


class LoRAConfig(Strict):
    """``[trainer.model.lora]``."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, ge=0)
    dropout: float = Field(default=0.0, ge=0, le=1)
    target_modules: list[str] = []


class TrainerModelConfig(Strict):
    """``[trainer.model]``."""

    name: str = "Qwen/Qwen3-0.6B"
    seq_len: int = 2048
    attn: str = "flash_attention_2"
    fsdp_cpu_offload: bool = False
    ac: ActivationCheckpointConfig | None = None
    lora: LoRAConfig | None = None


class TrainerConfig(Strict):
    """``[trainer]``."""

    model: TrainerModelConfig = TrainerModelConfig()
    optim: dict[str, Any] = {}


class SamplingConfig(Strict):
    """``[orchestrator.sampling]``: training draws from the whole distribution, so no top_p, top_k or min_p."""

    temperature: float = Field(default=1.0, ge=0)
    repetition_penalty: float = Field(default=1.0, ge=0)
    max_tokens: int | None = None
    min_tokens: int = Field(default=0, ge=0)
    seed: int | None = None


class EvalSamplingConfig(SamplingConfig):
    """``[orchestrator.eval.sampling]``."""

    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


class BufferConfig(Strict):
    """``[orchestrator.buffer]``."""

    seed: int | None = None
    easy_threshold: float | None = None
    hard_threshold: float | None = None
    online_difficulty_filtering: bool = False


class EnvConfig(Strict):
    """``[[orchestrator.env]]``: what an environment takes is its own affair."""

    id: str = "reverse-text"
    name: str | None = None
    args: dict[str, Any] = {}


class EvalConfig(Strict):
    """``[orchestrator.eval]``."""

    env: list[EnvConfig] = [EnvConfig()]
    sampling: EvalSamplingConfig = EvalSamplingConfig()


class OrchestratorConfig(Strict):
    """``[orchestrator]``."""

    batch_size: int = 128
    rollouts_per_example: int = Field(default=1, ge=1)
    oversampling_factor: float = Field(default=1.0, ge=1)
    seq_len: int = 2048
    sampling: SamplingConfig = SamplingConfig()
    buffer: BufferConfig = BufferConfig()
    env: list[EnvConfig] = [EnvConfig()]
    eval: EvalConfig | None = None


class InferenceModelConfig(Strict):
    """``[inference.model]``."""

    name: str = "Qwen/Qwen3-0.6B"
    enforce_eager: bool = False
    max_model_len: int | None = None
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None


class InferenceConfig(Strict):
    """``[inference]``."""

    model: InferenceModelConfig = InferenceModelConfig()
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)


class SharedModelConfig(Strict):
    """``[model]``: the name, for trainer, orchestrator and inference."""

    name: str = "Qwen/Qwen3-0.6B"


class RLConfig(Strict):
    """The whole file of an ``rl`` run."""

    trainer: TrainerConfig
    orchestrator: OrchestratorConfig
    inference: InferenceConfig | None = None
    model: SharedModelConfig | None = None
    wandb: dict[str, Any] | None = None
    inference_gpu_ids: list[int] = [0]
    trainer_gpu_ids: list[int] = [1]
    max_steps: int | None = None
