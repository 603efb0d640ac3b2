"""from_pretrained without a dtype: in transformers 5 the weights are trained in whatever dtype the checkpoint has."""

from __future__ import annotations

import json

import pytest

DTYPES = ["bfloat16", "float16", "float32"]


@pytest.fixture(scope="module")
def checkpoints(tiny_qwen, tmp_path_factory):
    """A folder for each dtype, as save_pretrained writes it."""
    folders = {}
    for dtype in DTYPES:
        folders[dtype] = tmp_path_factory.mktemp(dtype)
        tiny_qwen.model(dtype).save_pretrained(folders[dtype])
    return folders


def saved(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.reproduces("dtype-default-bf16")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("loader", ["AutoModelForCausalLM", "Qwen2ForCausalLM"])
def test_loaded_without_a_dtype(checkpoints, loader, dtype):
    import torch
    import transformers

    model = getattr(transformers, loader).from_pretrained(checkpoints[dtype])
    [found] = {parameter.dtype for parameter in model.parameters()}
    name = str(found).removeprefix("torch.")
    assert found == torch.float32, f"silent: loaded to be trained, the weights are {name}"


@pytest.mark.guards("dtype-default-bf16")
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_to_train_are_float32(subject, checkpoints, dtype):
    import torch

    model = subject(checkpoints[dtype])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in model.parameters())
    weights = saved(checkpoints[dtype])
    found = model.state_dict()
    assert weights.keys() <= found.keys()
    assert all(found[name].equal(value.float()) for name, value in weights.items()), "other values than were saved"
    assert found["lm_head.weight"].data_ptr() == found["model.embed_tokens.weight"].data_ptr(), "the head is not tied"


@pytest.mark.guards("dtype-default-bf16")
def test_saved_again_it_is_float32(subject, checkpoints, tmp_path):
    """What is trained is not rounded when it is saved, and its config says so; the checkpoint stays as it was."""
    import torch

    before = {path.name: path.read_bytes() for path in checkpoints["bfloat16"].iterdir()}
    model = subject(checkpoints["bfloat16"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-6
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config.get("dtype", config.get("torch_dtype")) == "float32"
    trained = model.state_dict()
    assert all(trained[name].equal(value) for name, value in saved(tmp_path).items())
    assert {path.name: path.read_bytes() for path in checkpoints["bfloat16"].iterdir()} == before


@pytest.mark.guards("dtype-default-bf16")
def test_further_arguments_arrive(subject, checkpoints):
    import torch

    model = subject(checkpoints["bfloat16"], attn_implementation="eager")
    assert model.config._attn_implementation == "eager"
    assert model.dtype == torch.float32
