"""The checkpoint's files have changed, and a reload from disk brings what they held before."""

from __future__ import annotations

import os

import pytest

from pytest_rlregress.scenarios.weight_sync.policies import generated_off, scored_off, tolerance

pytestmark = pytest.mark.needs("vllm-engine", "transformers")


@pytest.fixture
def write(checkpoint):
    """``write(model)``: put its weights in the place of the checkpoint's, as a trainer does; undone afterwards."""
    from safetensors.torch import save_file

    file = checkpoint / "model.safetensors"
    kept = file.read_bytes()

    def write(model):
        tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}  # a tied head by its own name
        save_file(tensors, new := file.with_suffix(".new"), metadata={"format": "pt"})
        os.replace(new, file)

    yield write
    file.write_bytes(kept)


def check_serves(engine, model):
    off = max(scored_off(engine, model), generated_off(engine, model))
    assert off <= tolerance(model), f"silent: {off:.2g} nats a token from the checkpoint on disk"


@pytest.mark.reproduces("reload-from-disk-stale")
def test_reload(engine, write, old, new):
    for model in (new, old, new):
        write(model)
        engine.llm.collective_rpc("reload_weights")
        engine.llm.reset_prefix_cache()
        check_serves(engine, model)


@pytest.mark.guards("reload-from-disk-stale")
def test_weights_read_by_the_trainer(engine, subject, write, checkpoint, old, new):
    from safetensors.torch import load_file

    for model in (new, old, new):
        write(model)
        subject(engine.llm, load_file(checkpoint / "model.safetensors").items())
        check_serves(engine, model)
