"""Further passes of a micro batch that is trained on, once a step; the trainer is as before when they are done."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

Loss = Callable[[Any, dict[str, Any]], torch.Tensor]


@contextmanager
def unchanged(trainer: Any) -> Iterator[None]:
    """Leave a trainer's metrics and all random states as they were; within, no dropout and no checkpointing."""
    kept = {name: copy.deepcopy(getattr(trainer, name)) for name in ("_metrics", "_logs") if hasattr(trainer, name)}
    window = getattr(trainer, "_entropy_window_stats", None)
    dropouts = [one for one in trainer.model.modules() if isinstance(one, torch.nn.Dropout) and one.training]
    for one in dropouts:
        one.training = False
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for one in dropouts:
            one.training = True
        for name, value in kept.items():
            setattr(trainer, name, value)
        if window is not None:
            trainer._entropy_window_stats = window


def find_gradient(trainer: Any, loss: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a loss as one row of numbers; ``.grad`` is left as it is."""
    weights = [one for one in trainer.model.parameters() if one.requires_grad]
    found = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([one.detach().flatten().float() for one in found])


def measure(trainer: Any, model: Any, inputs: Mapping[str, Any], compute: Loss) -> dict[str, float]:
    """Return how far the gradient of a micro batch is from that of its halves, and from that with other masked ids.

    Both are relative to the gradient; a number is missing where a batch has one row, or nothing is masked. Rows whose
    advantages are all 0 get 1 and -1 in turn: else the gradient is zero, and any two are the same.
    """
    batch = dict(inputs)
    found: dict[str, float] = {}
    with unchanged(trainer):
        if not batch["advantages"].any():
            batch["advantages"] = torch.ones_like(batch["advantages"])
            batch["advantages"][1::2] = -1.0
        whole = find_gradient(trainer, compute(model, batch))
        size = float(whole.norm())
        if not size > 0:
            return found
        rows = len(batch["completion_ids"])
        if rows % 2 == 0:
            with _halved(trainer):
                halves = [find_gradient(trainer, compute(model, half)) for half in _split(batch, rows // 2)]
            found["split_difference"] = float((halves[0] + halves[1] - whole).norm()) / size
        masked = batch["completion_mask"] == 0
        if masked.any():
            other = batch["completion_ids"].masked_fill(masked, 7)
            changed = find_gradient(trainer, compute(model, {**batch, "completion_ids": other}))
            found["masked_difference"] = float((changed - whole).norm()) / size
    return found


@contextmanager
def _halved(trainer: Any) -> Iterator[None]:
    """Tell a trainer that twice as many micro batches make its step."""
    accumulated, slices = trainer.current_gradient_accumulation_steps, trainer.args.steps_per_generation
    trainer.current_gradient_accumulation_steps, trainer.args.steps_per_generation = 2 * accumulated, 2 * slices
    try:
        yield
    finally:
        trainer.current_gradient_accumulation_steps, trainer.args.steps_per_generation = accumulated, slices


def _split(batch: Mapping[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    for start in (0, rows):
        yield {
            name: value[start : start + rows] if torch.is_tensor(value) and value.ndim else value
            for name, value in batch.items()
        }
