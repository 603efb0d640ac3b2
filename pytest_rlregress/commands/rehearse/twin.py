"""A second model with a trainer's weights, and what is random in the trainer's own."""

from __future__ import annotations

import copy
from typing import Any

import torch


def make_twin(model: Any) -> Any:
    """Return a model of the same class with the same weights; a copy would keep the forward that TRL gives a model."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    with torch.random.fork_rng():
        twin = type(base)(copy.deepcopy(base.config)).to(base.dtype)
    if hasattr(model, "peft_config"):
        from peft import get_peft_model

        twin = get_peft_model(twin, copy.deepcopy(model.peft_config["default"]))
    twin.load_state_dict(model.state_dict())
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    for name, weight in twin.named_parameters():
        weight.requires_grad_(name in trained)
    return twin


def find_dropouts(model: Any) -> tuple[str, ...]:
    """Return what drops something in a model while it is trained: the last names of its modules, and the share."""
    found = [(name, one.p) for name, one in model.named_modules() if isinstance(one, torch.nn.Dropout) and one.p > 0]
    names = [".".join(name.split(".")[-2:] if "lora" in name else name.split(".")[-1:]) for name, _ in found]
    return tuple(dict.fromkeys(f"{name} {share:g}" for name, (_, share) in zip(names, found, strict=True)))
