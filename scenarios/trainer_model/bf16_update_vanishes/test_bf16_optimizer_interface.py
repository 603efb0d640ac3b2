"""The optimizer with float32 masters is used as any other, and refuses what it cannot do."""

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.trainer_model.bf16_update_vanishes.test_bf16_update_vanishes import (
    RATE,
    adamw,
    gradients,
    train,
    weight,
)
from pytest_rlregress.stack.lazy import torch


@pytest.mark.guards("bf16-update-vanishes")
@pytest.mark.parametrize("given", [{}, {"set_to_none": True}, {"set_to_none": False}], ids=["default", "none", "zero"])
def test_zero_grad_clears_every_gradient(subject, given):
    one, low = weight("float32"), weight()
    with act():
        optimizer = subject(torch.optim.AdamW([one, low], lr=RATE))
    one.grad, low.grad = torch.ones_like(one), torch.ones_like(low)
    optimizer.zero_grad(**given)
    assert (one.grad is None) == given.get("set_to_none", True)
    assert not any(weight.grad is not None and weight.grad.any() for weight in (one, low))


@pytest.mark.guards("bf16-update-vanishes")
def test_loaded_weights_replace_the_float32_copies(subject):
    """A checkpoint loaded into the model counts, and not what the optimizer remembers of the weights."""
    one = weight()
    with act():
        optimizer = subject(adamw(one))
    train(optimizer, one, gradients(20))
    one.data.fill_(1.0)
    assert (train(optimizer, one, gradients(20)) - 1).abs().max() < 0.01


@pytest.mark.guards("bf16-update-vanishes")
def test_rejects_closures_and_states_of_other_optimizers(subject):
    one = weight()
    with act():
        optimizer = subject(adamw(one))
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(closure=lambda: 0.0)
    stepped = adamw(other := weight())
    train(stepped, other, gradients(1))
    with pytest.raises(ValueError, match="step"):
        subject(stepped)
    with pytest.raises(KeyError, match="float32_masters"):
        optimizer.load_state_dict(adamw(weight()).state_dict())
