"""What a run's trainer holds in a card's memory, and how its engine shares the card: read from the configuration, and
from the model's config.json or name."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress import remedies
from pytest_rlregress.commands.preflight.config import PlannedRun, Unchecked, not_known
from pytest_rlregress.util.units import GIB

CUDA_CONTEXT = GIB  # the least of what predict_training_memory does not count

_BYTES = {"float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2, "auto": 2}
# FSDP's strategies with which each card holds all the weights, by the names of both its releases.
_WHOLE = ("NO_SHARD", "SHARD_GRAD_OP", "3", "2")
# Qwen 2.5: the size in its name, parameters, layers, widths of the residual stream and of the MLP.
SIZES = (
    (0.5, 494_032_768, 24, 896, 4864),
    (1.5, 1_543_714_304, 28, 1536, 8960),
    (3, 3_085_938_688, 36, 2048, 11008),
    (7, 7_615_616_512, 28, 3584, 18944),
    (14, 14_770_033_664, 48, 5120, 13824),
    (32, 32_763_876_352, 64, 5120, 27648),
    (72, 72_706_203_648, 80, 8192, 29568),
)


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder, by the names of its config.json."""

    parameters: int
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int = 151_936


@dataclass(frozen=True)
class Training:
    """What is trained, and how.

    Attributes:
        cards: Over which everything is spread.
        tokens: In a micro batch.
        least_tokens: With micro batches as small as they can be.
        logits: How many are kept, as a share of what a loss in float32 keeps.
        optimizer_cards: Over which gradients and moments are spread, where that is more.
        doubt: Why only the weights are known.
    """

    model: Model
    cards: int
    lora_rank: int
    tokens: int
    checkpointing: bool
    bytes_per_weight: int = 4
    logits: float = 1
    least_tokens: int = 1
    optimizer_cards: int = 1
    doubt: Unchecked | None = None

    def weights(self) -> int:
        """Return the bytes that the weights alone take on each card."""
        return self.bytes_per_weight * self.model.parameters // self.cards

    def moments(self) -> int:
        """Return the bytes of Adam's two moments on each card, in the type of the weights, of what is trained."""
        trainable = self._adapters() or self.model.parameters
        return 2 * self.bytes_per_weight * trainable // max(self.cards, self.optimizer_cards)

    def _adapters(self) -> int:
        model = self.model
        return self.lora_rank * model.num_hidden_layers * (9 * model.hidden_size + 3 * model.intermediate_size)

    def peak(self) -> int:
        """Return the bytes that a step takes on each card."""
        model = self.model
        adapters = self._adapters()
        predicted = remedies.predict_training_memory(
            parameters=(model.parameters + adapters) // self.cards,
            trainable=(adapters or model.parameters) // max(self.cards, self.optimizer_cards),
            num_hidden_layers=model.num_hidden_layers,
            hidden_size=model.hidden_size,
            intermediate_size=model.intermediate_size,
            vocab_size=int(model.vocab_size * self.logits),
            tokens=self.tokens,
            checkpointing=self.checkpointing,
            bytes_per_weight=self.bytes_per_weight,
        )
        return predicted + CUDA_CONTEXT


def training_of(run: PlannedRun) -> Training | Unchecked:
    """Return what is trained, or which number is lacking for it."""
    if run.verl and "actor_rollout_ref" not in run.tree:
        return Unchecked("memory is predicted only for runs with actor_rollout_ref")
    path = run.get(run.keys.model)
    model = model_with(run.parameters) if run.parameters else model_of(path) if isinstance(path, str) else None
    if model is None:
        why = f"the size of the model {path} is not known here" if path else "no model given"
        return Unchecked(f"{why}: give --parameters", ("--parameters",) if path else (run.keys.model,))
    if run.verl:
        return _of_verl(run, model)
    return _of_trl(run, model) if run.trl else _of_prime_rl(run, model)


def _of_verl(run: PlannedRun, model: Model) -> Training | Unchecked:
    actor, its_model = "actor_rollout_ref.actor", "actor_rollout_ref.model"
    if not trains_with_fsdp(run) or run.get(f"{actor}.fsdp_config.offload_policy"):
        return Unchecked("memory is predicted only for FSDP without offload_policy")
    lengths = {key: run.number(key, 512) for key in ("data.max_prompt_length", "data.max_response_length")}
    length = sum(one or 0 for one in lengths.values())
    if run.get(f"{actor}.use_dynamic_bsz"):
        key = f"{actor}.ppo_max_token_len_per_gpu"
        needed = {key: run.number(key, 16384)}
        tokens = needed[key]
    else:
        key = f"{actor}.ppo_micro_batch_size_per_gpu"
        needed = {key: run.number(key), **lengths}
        tokens = (needed[key] or 0) * length
    all_cards = {"trainer.n_gpus_per_node": 8, "trainer.nnodes": 1}
    needed |= {key: run.number(key, default) for key, default in all_cards.items()}
    cards = math.prod(needed[key] or 0 for key in all_cards)
    if not tokens or cards < 1:
        return not_known(*(key for key, value in needed.items() if not value or value < 1))
    spread = run.number(f"{actor}.ulysses_sequence_parallel_size", 1) or 1
    return Training(
        model,
        cards=int(cards),
        lora_rank=lora_of(run),
        tokens=int(tokens / spread),
        least_tokens=int(length / spread),
        checkpointing=run.get(f"{its_model}.enable_gradient_checkpointing", True) is not False,
        bytes_per_weight=_BYTES.get(str(run.get(f"{actor}.fsdp_config.model_dtype")), 4),
        logits=0 if run.get(f"{its_model}.use_fused_kernels") else 1 / 3,  # bfloat16, and its gradient in its place
    )


def _of_prime_rl(run: PlannedRun, model: Model) -> Training | Unchecked:
    if run.get("trainer.model.fsdp_cpu_offload"):
        return Unchecked("what a trainer with fsdp_cpu_offload holds on the card is not predicted")
    cards = run.get("trainer_gpu_ids", [1])
    tokens = int(run.number("trainer.model.seq_len", 2048) or 2048)
    return Training(
        model,
        cards=len(cards) if isinstance(cards, list) and cards else 1,
        lora_rank=lora_of(run),
        tokens=tokens,
        least_tokens=tokens,
        checkpointing=run.get("trainer.model.ac") is not None,
    )


def _of_trl(run: PlannedRun, model: Model) -> Training | Unchecked:
    defaults = run.schema.defaults
    own = run.program.endswith(".py")  # and may load the model in its own way
    if run.get("load_in_4bit") or run.get("load_in_8bit"):
        return Unchecked("what a quantized model holds on the card is not predicted")
    spread = _cards_of_accelerate(run)
    if isinstance(spread, Unchecked):
        return spread
    sequences = run.number("per_device_train_batch_size", defaults.get("per_device_train_batch_size"))
    completion = run.number("max_completion_length", defaults.get("max_completion_length"))
    if completion is None:  # no generation: how long the data is, only packing says
        packed = run.get("packing") and run.number("max_length", defaults.get("max_length"))
        completion = packed or 1
    prompt = run.prompt_tokens or run.number("max_prompt_length") or 0
    if not sequences:
        return not_known("per_device_train_batch_size")
    doubt = None
    if run.get("use_peft", None if own else False) is None:
        doubt = Unchecked(f"whether {run.program} trains LoRA is not known here: give use_peft", ("use_peft",))
    dtype = run.get("dtype", run.get("torch_dtype", "auto" if own else defaults.get("dtype")))
    length = completion + prompt
    return Training(
        model,
        cards=spread[0],
        optimizer_cards=spread[1],
        lora_rank=lora_of(run),
        tokens=int(sequences * length),
        least_tokens=int(length),
        checkpointing=run.get("gradient_checkpointing", defaults.get("gradient_checkpointing", True)) is not False,
        bytes_per_weight=_BYTES.get(str(dtype), 2),
        logits=0 if run.get("use_liger_kernel") else completion / length / 3,  # of the completion, in bfloat16
        doubt=doubt,
    )


def _cards_of_accelerate(run: PlannedRun) -> tuple[int, int] | Unchecked:
    """Return over how many cards all is spread, and over how many gradients and the optimizer's moments."""
    cards, kind = run.number("accelerate.num_processes"), run.get("accelerate.distributed_type")
    deepspeed, fsdp = "accelerate.deepspeed_config", "accelerate.fsdp_config"
    elsewhere = run.get("deepspeed") or run.get("fsdp") or run.get(f"{deepspeed}.deepspeed_config_file")
    if not cards or cards < 1 or elsewhere or (cards > 1 and kind is None):
        why = "over how many cards accelerate spreads the model is not known here: give its file beside TRL's"
        wanted = {"accelerate.num_processes": cards, "accelerate.distributed_type": kind}
        return Unchecked(why, tuple(key for key, value in wanted.items() if not value) or tuple(wanted))
    offloads = run.get(f"{fsdp}.fsdp_offload_params") is True
    if offloads or run.get(f"{deepspeed}.offload_param_device", "none") != "none":
        return Unchecked("what a trainer with offloaded parameters holds on the card is not predicted")
    if kind == "FSDP":
        whole = str(run.get(f"{fsdp}.fsdp_sharding_strategy")) in _WHOLE
        return 1 if whole else int(cards), int(cards)
    if run.get(f"{deepspeed}.offload_optimizer_device", "none") != "none":
        return Unchecked("what a trainer with an offloaded optimizer holds on the card is not predicted")
    zero = run.number(f"{deepspeed}.zero_stage") if kind == "DEEPSPEED" else None
    if kind == "DEEPSPEED" and zero is None:
        stage = f"{deepspeed}.zero_stage"
        return Unchecked("what DeepSpeed spreads over the cards its stage says: give zero_stage", (stage,))
    return int(cards) if zero == 3 else 1, int(cards) if zero else 1


def trains_with_fsdp(run: PlannedRun) -> bool:
    """Return whether verl's actor is FSDP's, as it is by default."""
    actor = "actor_rollout_ref.actor"
    other = run.get("model_engine", "dp") != "dp" or run.get(f"{actor}.megatron") is not None
    return run.get(f"{actor}.strategy", "fsdp") in ("fsdp", "fsdp2") and not other


def lora_of(run: PlannedRun) -> int:
    """Return LoRA's rank, 0 without it."""
    if run.verl:
        return int(run.number("actor_rollout_ref.model.lora_rank", 0) or 0)
    if run.trl:
        return int(run.number("lora_r", 16) or 0) if run.get("use_peft") else 0
    for table in ("trainer.model.lora", "trainer.model.experimental.lora"):  # the second until the end of 2025
        if run.get(table) is not None:
            return int(run.number(f"{table}.rank", 16) or 0)
    return 0


def engine_sleeps(run: PlannedRun) -> bool:
    """Return whether the engine gives its memory back while the trainer works."""
    if run.trl:
        return bool(run.get("vllm_enable_sleep_mode", False))
    return run.verl and bool(run.get("actor_rollout_ref.rollout.free_cache_engine", True))


def on_one_card(run: PlannedRun) -> bool:
    """Return whether trainer and engine share a card."""
    if run.verl:
        apart = run.get("trainer.v1.trainer_mode") == "separate_async"
        return bool(run.get("actor_rollout_ref.hybrid_engine", True)) and not apart
    if run.trl:
        mode = run.get("vllm_mode", run.schema.defaults.get("vllm_mode"))
        return bool(run.get("use_vllm", False)) and mode == "colocate"
    engine, trainer = run.get("inference_gpu_ids", [0]), run.get("trainer_gpu_ids", [1])
    return isinstance(engine, list) and isinstance(trainer, list) and any(card in trainer for card in engine)


def model_of(path: str) -> Model | None:
    """Return the sizes of a model by its config.json, if it is here, else by its name: Qwen2.5-7B, Qwen3-30B-A3B."""
    file = os.path.join(os.path.expanduser(path), "config.json")
    if os.path.isfile(file):
        try:
            return _by_config(json.loads(Path(file).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
    parts = Path(path).parts
    # The cache of the model hub has the name two folders up: models--Qwen--Qwen2.5-7B/snapshots/HASH.
    name = next((part for part in parts if part.startswith("models--")), "".join(parts[-1:]))
    size = re.search(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])", name)
    if not size:
        return None
    active = re.search(r"(?<![A-Za-z])A(\d+(?:\.\d+)?)B", name) or size
    nearest, parameters, *widths = min(SIZES, key=lambda known: abs(known[0] - float(active[1])))
    qwen = "qwen2" in name.lower() and nearest == float(size[1])
    return Model(parameters if qwen else int(float(size[1]) * 1e9), *widths)


def model_with(parameters: int) -> Model:
    """Return a model of so many parameters, as wide and deep as the known one that is nearest to it in size."""
    _, _, *widths = min(SIZES, key=lambda known: abs(known[1] - parameters))
    return Model(parameters, *widths)


def _by_config(config: dict[str, Any]) -> Model | None:
    """Count parameters as Qwen 2 and Llama have them; None for a mixture of experts and what else has other parts."""
    config = config.get("text_config", config)
    try:
        layers, width, mlp = (int(config[key]) for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
        heads, vocabulary = int(config["num_attention_heads"]), int(config["vocab_size"])
    except (KeyError, TypeError, ValueError):
        return None
    if any("experts" in key for key in config):
        return None
    head = int(config.get("head_dim") or width // heads)
    attention = 2 * width * head * (heads + int(config.get("num_key_value_heads") or heads))
    embeddings = vocabulary * width * (1 if config.get("tie_word_embeddings") else 2)
    return Model(layers * (attention + 3 * width * mlp) + embeddings, layers, width, mlp, vocabulary)
