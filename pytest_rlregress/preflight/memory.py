"""Rules of preflight about memory: whether trainer and engine fit on the card.

Predicted is less rather than more, so that what is found to be too much is too much.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_rlregress import remedies
from pytest_rlregress.preflight.document import RuleContext, Unchecked
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.units import GIB

CUDA_CONTEXT = GIB  # the least of what predict_training_memory does not count

MORE = "fewer tokens in a micro batch, more or larger cards, or a smaller model"

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
        tokens: In a micro batch.
        logits: How many are kept, as a share of what a loss in float32 keeps.
    """

    model: Model
    cards: int
    lora_rank: int
    tokens: int
    checkpointing: bool
    bytes_per_weight: int = 4
    logits: float = 1

    def weights(self) -> int:
        """Return the bytes that the weights alone take on each card."""
        return self.bytes_per_weight * self.model.parameters // self.cards

    def peak(self) -> int:
        """Return the bytes that a step takes on each card."""
        model = self.model
        adapters = self.lora_rank * model.num_hidden_layers * (9 * model.hidden_size + 3 * model.intermediate_size)
        predicted = remedies.predict_training_memory(
            parameters=(model.parameters + adapters) // self.cards,
            trainable=(adapters or model.parameters) // self.cards,
            num_hidden_layers=model.num_hidden_layers,
            hidden_size=model.hidden_size,
            intermediate_size=model.intermediate_size,
            vocab_size=int(model.vocab_size * self.logits),
            tokens=self.tokens,
            checkpointing=self.checkpointing,
            bytes_per_weight=self.bytes_per_weight,
        )
        return predicted + CUDA_CONTEXT


def gpu_memory_utilization(run: RuleContext) -> Iterator[Advice | Unchecked]:
    """An engine that asks, when it starts, for more of the card than the trainer leaves."""
    key, default = _engine_share(run)
    asked = run.config.number(key, default)
    if not _on_one_card(run) or asked is None:
        return
    if not run.memory_bytes:
        yield Unchecked(f"{run.profile.title} says nothing of GPU memory: give --hw")
        return
    limit, held, peak = _share_limit(run)
    if asked > limit:
        why = f"the engine asks for {asked:g} of {run.memory_bytes / GIB:.0f} GiB, and shares the card with the trainer"
        why += f", whose weights take {held / GIB:.0f} GiB" if held else ""
        share = _share_beside(run, peak)
        yield Advice(key, why, run.config.write(key, share) if share else MORE)


def trainer_engine_oom(run: RuleContext) -> Iterator[Advice | Unchecked]:
    """A trainer whose step needs more than an engine leaves that was able to start."""
    training = _training(run)
    if isinstance(training, Unchecked):
        yield training
        return
    if not run.memory_bytes:
        yield Unchecked(f"{run.profile.title} says nothing of GPU memory: give --hw")
        return
    share = 0.0
    if _on_one_card(run):
        asked = run.config.number(*_engine_share(run)) or 0
        if asked > _share_limit(run)[0]:
            return
        share = 0 if _engine_sleeps(run) else asked
    left = int(run.memory_bytes * (1 - share))
    needed = training.peak()
    if needed > left:
        engine = f", of which the engine has {share:g}" if share else ""
        why = f"a step of the trainer needs about {needed / GIB:.0f} GiB of {run.memory_bytes / GIB:.0f}{engine}"
        yield Advice(*_remedy(run, training, left, why))


def _remedy(run: RuleContext, training: Training, left: int, why: str) -> tuple[str, str, str]:
    """Return the first of the documented remedies that is enough: key, why, what to write."""
    config = run.config
    model = "actor_rollout_ref.model" if run.verl else "trainer.model"
    thrifty = replace(training, checkpointing=True)
    if not training.checkpointing and thrifty.peak() <= left:
        key = f"{model}.enable_gradient_checkpointing" if run.verl else f"{model}.ac"
        return key, why, config.write(key, "true") if run.verl else "ac = { freq = 1 }"
    if left < run.memory_bytes:
        key = _engine_share(run)[0]
        share = _share_beside(run, thrifty.peak())
        if share:
            return key, why, config.write(key, share)
    if not training.lora_rank and replace(thrifty, lora_rank=8).peak() <= left:
        key = f"{model}.lora_rank" if run.verl else f"{model}.lora"
        return key, why, config.write(key, 8) if run.verl else "lora = { rank = 8, alpha = 32 }"
    if not training.lora_rank and not run.verl:
        return f"{model}.fsdp_cpu_offload", why, "fsdp_cpu_offload = true"
    return f"{model}.path" if run.verl else "model.name", why, MORE


def _engine_share(run: RuleContext) -> tuple[str, float]:
    """Return the key of the engine's share, and its default."""
    verl = ("actor_rollout_ref.rollout.gpu_memory_utilization", 0.5)
    return verl if run.verl else ("inference.gpu_memory_utilization", 0.9)


def _on_one_card(run: RuleContext) -> bool:
    config = run.config
    if run.verl:
        apart = config.get("trainer.v1.trainer_mode") == "separate_async"
        return bool(config.get("actor_rollout_ref.hybrid_engine", True)) and not apart
    engine, trainer = config.get("inference_gpu_ids", [0]), config.get("trainer_gpu_ids", [1])
    return isinstance(engine, list) and isinstance(trainer, list) and any(card in trainer for card in engine)


def _engine_sleeps(run: RuleContext) -> bool:
    """Return whether the engine gives its memory back while the trainer works."""
    return run.verl and bool(run.config.get("actor_rollout_ref.rollout.free_cache_engine", True))


def _share_limit(run: RuleContext) -> tuple[float, int, int]:
    """Return the largest share the engine can start with, and what the trainer holds then, and in a step."""
    training = _training(run)
    offloaded = run.config.get("actor_rollout_ref.actor.fsdp_config.param_offload") is True
    held, peak = (0, 0) if isinstance(training, Unchecked) or offloaded else (training.weights(), training.peak())
    if _engine_sleeps(run):
        return 1 - held / run.memory_bytes, held, held
    try:
        return remedies.engine_memory_share(run.memory_bytes, held), held, peak
    except ValueError:  # the trainer does not fit, with or without an engine
        return remedies.engine_memory_share(run.memory_bytes, 0), held, peak


def _share_beside(run: RuleContext, reserved: int) -> float | None:
    """Return the largest share that leaves so many bytes; None if the engine's own weights, in 16 bits, do not fit."""
    training = _training(run)
    try:
        share = remedies.engine_memory_share(run.memory_bytes, reserved)
    except ValueError:
        return None
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size" if run.verl else "inference.parallel.tp"
    weights = 0 if isinstance(training, Unchecked) else 2 * training.model.parameters
    return share if share * run.memory_bytes > weights / (run.config.number(key, 1) or 1) else None


def _training(run: RuleContext) -> Training | Unchecked:
    config = run.config
    path = config.get("actor_rollout_ref.model.path" if run.verl else "model.name")
    model = model_of(path) if isinstance(path, str) else None
    if model is None:
        return Unchecked(f"the size of the model {path} is not known here" if path else "no model given")
    if not run.verl:
        if config.get("trainer.model.fsdp_cpu_offload"):
            return Unchecked("what a trainer with fsdp_cpu_offload holds on the card is not predicted")
        cards = config.get("trainer_gpu_ids", [1])
        return Training(
            model,
            cards=len(cards) if isinstance(cards, list) and cards else 1,
            lora_rank=lora_of(run),
            tokens=int(config.number("trainer.model.seq_len", 2048) or 2048),
            checkpointing=config.get("trainer.model.ac") is not None,
        )
    actor, its_model = "actor_rollout_ref.actor", "actor_rollout_ref.model"
    fsdp = config.get(f"{actor}.strategy", "fsdp") in ("fsdp", "fsdp2")
    if not fsdp or config.get(f"{actor}.fsdp_config.offload_policy"):
        return Unchecked("what is predicted is FSDP without offload_policy")
    if config.get(f"{actor}.use_dynamic_bsz"):
        tokens = config.number(f"{actor}.ppo_max_token_len_per_gpu", 16384)
    else:
        length = (config.number(f"data.max_{part}_length", 512) or 0 for part in ("prompt", "response"))
        tokens = (config.number(f"{actor}.ppo_micro_batch_size_per_gpu") or 0) * sum(length)
    cards = (config.number("trainer.n_gpus_per_node", 8) or 0) * (config.number("trainer.nnodes", 1) or 0)
    if not tokens or not cards:
        return Unchecked("how many cards there are, or how many tokens a micro batch has, is not known here")
    return Training(
        model,
        cards=int(cards),
        lora_rank=lora_of(run),
        tokens=int(tokens / (config.number(f"{actor}.ulysses_sequence_parallel_size", 1) or 1)),
        checkpointing=config.get(f"{its_model}.enable_gradient_checkpointing", True) is not False,
        bytes_per_weight=2 if config.get(f"{actor}.fsdp_config.model_dtype") in ("bf16", "bfloat16", "fp16") else 4,
        logits=0 if config.get(f"{its_model}.use_fused_kernels") else 1 / 3,  # bfloat16, and its gradient in its place
    )


def lora_of(run: RuleContext) -> int:
    """Return LoRA's rank, 0 without it."""
    if run.verl:
        return int(run.config.number("actor_rollout_ref.model.lora_rank", 0) or 0)
    for table in ("trainer.model.lora", "trainer.model.experimental.lora"):  # the second until the end of 2025
        if run.config.get(table) is not None:
            return int(run.config.number(f"{table}.rank", 16) or 0)
    return 0


def model_of(path: str) -> Model | None:
    """Return the sizes of a model by its config.json, if it is here, else by its name: Qwen2.5-7B, Qwen3-30B-A3B."""
    file = os.path.join(os.path.expanduser(path), "config.json")
    if os.path.isfile(file):
        try:
            return _by_config(json.loads(Path(file).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
    size = re.search(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])", path)
    if not size:
        return None
    active = re.search(r"(?<![A-Za-z])A(\d+(?:\.\d+)?)B", path) or size
    name, parameters, *widths = min(SIZES, key=lambda known: abs(known[0] - float(active[1])))
    qwen = "qwen2" in path.lower() and name == float(size[1])
    return Model(parameters if qwen else int(float(size[1]) * 1e9), *widths)


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
