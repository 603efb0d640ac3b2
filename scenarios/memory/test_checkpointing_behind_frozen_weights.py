"""What a layer is given has no gradient behind frozen weights: checkpointing of the re-entrant kind gives it none."""

from __future__ import annotations

import pytest


def loss_of(model):
    import torch

    ids = torch.arange(100, 164).view(2, 32)
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def gradients(model):
    model.zero_grad()
    loss_of(model).backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.guards("fsdp-cpu-offload-lora")
def test_the_last_layer_is_trained_as_without(tiny_qwen, subject):
    import torch

    model = tiny_qwen.model().requires_grad_(False)
    model.model.layers[-1].mlp.requires_grad_(True)
    plain = gradients(model)
    assert plain
    subject(model)
    torch.testing.assert_close(gradients(model), plain)
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    asked = torch.autograd.grad(loss_of(model), list(trained.values()))  # the re-entrant kind refuses that
    torch.testing.assert_close(dict(zip(trained, asked, strict=True)), plain)
