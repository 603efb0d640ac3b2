"""Read what the recorder of a real run takes from a step; each function reads a few numbers and changes nothing."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pytest_rlregress.commands.rehearse.properties import FLOORS, SAME

#: Weights of which a row is looked at, and its numbers.
WEIGHTS, NUMBERS = 64, 64
#: Rounding of two log-probabilities of one token, in nats a token: of two engines in float32, and with bfloat16 on one
#: side at least (docs/agreement.md).
FLOOR, FLOOR_OF_16_BITS = 1e-5, 0.01


def bind(trainer: Any, name: str, arguments: Any, named: Any) -> dict[str, Any]:
    """Return the arguments of a call of the trainer's method by their names in its class."""
    return inspect.signature(getattr(type(trainer), name)).bind(trainer, *arguments, **named).arguments


def digest_row(row: Mapping[str, Any]) -> str:
    """Return a digest of a row of the data; an image stands for its kind."""
    text = json.dumps(row, default=lambda one: type(one).__name__, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def keep_rewards(reward: Any, number: int, given: dict[int, Any]) -> Any:
    """Return a reward function that keeps what it gave under its number; a model is returned as it is."""
    if isinstance(reward, torch.nn.Module):
        return reward

    def keep(found: Any) -> Any:
        if isinstance(found, (list, tuple)) or hasattr(found, "tolist"):  # another one may be read only once
            given[number] = found
        return found

    @functools.wraps(reward)
    def observed(*arguments: Any, **columns: Any) -> Any:
        return keep(reward(*arguments, **columns))

    @functools.wraps(reward)
    async def observed_later(*arguments: Any, **columns: Any) -> Any:
        return keep(await reward(*arguments, **columns))

    is_awaited = inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__)
    return observed_later if is_awaited else observed


def compare_given(given: Mapping[int, Any], used: torch.Tensor) -> dict[str, Any]:
    """Return how far the rewards that functions gave are from those that the trainer uses, a column each.

    Where a function gave another number of them, those are the ``rewards``.
    """
    found: dict[str, Any] = {}
    for number, values in given.items():
        raw = [math.nan if one is None else float(one) for one in values]
        if len(raw) != len(used):
            found["rewards"] = (tuple(raw),)
            continue
        apart = float((torch.tensor(raw) - used[:, number]).nan_to_num().abs().max())
        found["reward_difference"] = max(apart, found.get("reward_difference", 0.0))
    return found


def add_rewards(used: torch.Tensor, weights: torch.Tensor) -> list[float]:
    """Return the weighted sum of each row of rewards; NaN if no function gave any."""
    sums = (used * weights).nansum(1)
    sums[used.isnan().all(1)] = math.nan
    return [float(one) for one in sums]


def compare_logprobs(now: torch.Tensor, inputs: Mapping[str, Any]) -> dict[str, tuple[torch.Tensor, ...]]:
    """Return sum, largest and number of the |differences| of a pass' log-probabilities from the batch's others."""
    mask = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()
    found = {}
    for name in ("old_per_token_logps", "sampling_per_token_logps", "ref_per_token_logps"):
        other = inputs.get(name)
        if other is None:
            continue
        kept = mask & ~other.isnan() if name == "sampling_per_token_logps" else mask  # vLLM may leave one out
        apart = torch.where(kept, (now - other).abs().float(), 0.0)
        found[name] = apart.sum(), apart.max(), kept.sum()
    return found


def add_up(apart: Sequence[Mapping[str, tuple[torch.Tensor, ...]]], exact: Mapping[str, bool]) -> dict[str, float]:
    """Return a step's differences of log-probabilities, and the rounding that they are judged by."""
    found: dict[str, float] = {"same": SAME if exact["trainer"] else FLOORS * FLOOR_OF_16_BITS}
    for name, key in (
        ("old_per_token_logps", "ratio_difference"),
        ("sampling_per_token_logps", "gap"),
        ("ref_per_token_logps", "reference_difference"),
    ):
        parts = [one[name] for one in apart if name in one]
        count = sum(float(kept) for _, _, kept in parts)
        if not count:
            continue
        mean = sum(float(total) for total, _, _ in parts) / count
        most = torch.stack([largest for _, largest, _ in parts]).max()  # of a tensor: NaN stays
        found[key] = mean if key == "gap" or not exact["trainer"] else float(most)
    if "gap" in found:
        found["floor"] = FLOOR if exact["trainer"] and exact["engine"] else FLOOR_OF_16_BITS
    return found


def is_exact(trainer: Any) -> dict[str, bool]:
    """Return whether trainer and engine compute in float32; an engine in another process counts as one that doesn't."""
    weights = {weight.dtype for weight in trainer.model.parameters() if weight.requires_grad}
    is_float32 = weights <= {torch.float32, torch.float64} and trainer.accelerator.mixed_precision == "no"
    if torch.cuda.is_available():
        is_float32 = is_float32 and not torch.backends.cuda.matmul.allow_tf32
    llm: Any = getattr(getattr(trainer, "vllm_generation", None), "llm", None)
    config = getattr(getattr(llm, "llm_engine", None), "model_config", None)
    return {"trainer": is_float32, "engine": getattr(config, "dtype", None) is torch.float32}


def read_rows(model: Any) -> dict[str, torch.Tensor]:
    """Return a part of one row of some trained weights, by name; of what this process holds of them."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    found = {}
    for name in sorted(trained, key=lambda name: zlib.crc32(name.encode()))[:WEIGHTS]:
        weight = getattr(trained[name], "ds_tensor", trained[name])  # DeepSpeed's part of it
        row = _find_local(weight).detach()
        while row.ndim > 1 and row.numel():
            row = row[len(row) // 2]
        if row.numel():
            found[name] = row[:NUMBERS].cpu().clone()
    return found


def _find_local(weight: Any) -> torch.Tensor:
    to_local: Callable[[], torch.Tensor] | None = getattr(weight, "to_local", None)  # FSDP's
    return to_local() if to_local else weight


def find_endings(trainer: Any, tokenizer: Any) -> list[int]:
    """Return the ids that end a completion as the trainer knows it."""
    known = getattr(trainer, "eos_token_ids", None)
    return [*known] if known else [tokenizer.eos_token_id]
