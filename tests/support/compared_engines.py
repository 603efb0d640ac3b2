"""What the tests of the fixture agreement do with engines and models."""

from __future__ import annotations

import pytest


def group(name):
    return pytest.mark.isolated(group=f"agreement {name}", timeout=300)


LONG = [step * 37 % 1000 + 5 for step in range(300)]  # more than two blocks of the cache
PROMPTS = [LONG, [*range(100, 105)], [*range(300, 320)]]


def started(sharp_qwen, progress, **options):
    from pytest_rlregress.fixtures import vllm_engine

    options = {"dtype": "float32", "max_model_len": 512, **options}
    return vllm_engine.start(sharp_qwen.directory, say=progress, **options)


def drawn(engine, prompts=PROMPTS, **sampling):
    return engine.generate(prompts, 24, seed=5, ignore_eos=True, **sampling)


def moved(model, part="", seed=0):
    """A model with every weight moved that has the part in its name."""
    import copy

    import torch

    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for name, parameter in other.named_parameters():
        if part in name:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return other
