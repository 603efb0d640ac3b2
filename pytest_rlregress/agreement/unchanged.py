"""Leave a user's model and random states as they are, whatever is done to find out about them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def unchanged(model: PreTrainedModel) -> Iterator[None]:
    """Dropout off within; afterwards modules are in the modes they were in, and parameters as trainable.

    The random states of Python, numpy and torch are those of before, too.
    """
    import numpy
    import torch

    modes = [(module, module.training) for module in model.modules()]
    trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, value in trainable:
            parameter.requires_grad_(value)
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cards:
            torch.cuda.set_rng_state_all(cards)
