"""Broken remedies of dropout-in-ratio, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant
from pytest_rlregress.remedies.losses import disable_dropout


@broken(only="test_ratio_is_1")
def modules_alone(model):
    """As TRL's disable_dropout."""
    import torch

    found = [module for module in model.modules() if isinstance(module, torch.nn.Dropout) and module.p]
    for module in found:
        module.p = 0.0
    return len(found)


@broken(only="test_model_is_the_same")
def parameters_frozen(model):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return disable_dropout(model)


@mutant("absent")
def dropout_never_drops(monkeypatch):
    import torch

    monkeypatch.setattr(torch.nn.functional, "dropout", lambda input, *args, **options: input)
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, dropout_p=0.0, **options: attend(*args, **options),
    )


@mutant("changed")
def model_refuses_training_mode(monkeypatch):
    from transformers import Qwen2ForCausalLM

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", fails)
