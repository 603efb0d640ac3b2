"""The tiny models of other architectures: the same bytes, whole, and loadable."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pytest_rlregress.fixtures import tiny_model, tiny_qwen
from pytest_rlregress.fixtures.tiny_model import ARCHITECTURES, build
from pytest_rlregress.stack import InterfaceMissing


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "models"))


def stored(built):
    from safetensors.torch import load_file

    return load_file(built.directory / "model.safetensors")


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_loads_whole_and_computes(kind):
    import torch
    from transformers import AutoConfig

    built = build(kind)
    model = built.model()
    config = AutoConfig.from_pretrained(built.directory).get_text_config()
    logits = model(torch.tensor([[20, 30, 40, 50]]), use_cache=False).logits
    assert logits.shape == (1, 4, 1024)
    assert config.vocab_size == 1024
    assert 0.1 < logits.std() < 1
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    text = built.tokenizer().apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert "<|im_start|>user\nhi" in text


@pytest.mark.parametrize("kind", ["qwen3", "gpt-oss"])
def test_every_weight_is_drawn_but_norms(kind):
    """Nothing is left as it was initialised by random numbers, and no bias is zero."""
    tensors, others = stored(build(kind)), stored(build(kind, seed=1))
    assert tensors.keys() == others.keys()
    same = {name for name, tensor in tensors.items() if tensor.equal(others[name])}
    assert same == {name for name in tensors if name.endswith("norm.weight")}


def test_same_bytes_in_any_process(tmp_path):
    code = "from pytest_rlregress.fixtures.tiny_model import build; print(build('qwen3-moe').directory)"
    made = []
    for number in range(2):
        environment = {"RLREGRESS_CACHE_DIR": str(tmp_path / str(number)), "PATH": ""}
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        folder = tmp_path / str(number) / done.stdout.strip().rpartition("/")[2]
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert made[0] == made[1]


def test_the_random_state_is_left_as_it_was():
    import torch

    torch.manual_seed(3)
    before = torch.get_rng_state()
    build("llama", seed=77)
    assert torch.equal(torch.get_rng_state(), before)


def test_qwen2_is_the_tiny_qwen():
    assert build("qwen2").directory == tiny_qwen.build().directory
    assert build("qwen2", seed=1).directory != tiny_qwen.build().directory


def test_arguments_reach_the_model():
    build("qwen3", vocab="full", dtype="bfloat16", num_hidden_layers=1)
    tensors = stored(build("qwen3", vocab="full", dtype="bfloat16", num_hidden_layers=1))
    assert tensors["model.embed_tokens.weight"].shape == (152064, 128)
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.bfloat16"}
    assert not any(".layers.1." in name for name in tensors)
    plain, scaled = (stored(build("llama", scale=scale))["lm_head.weight"] for scale in (1, 4))
    assert (4 * plain).sub(scaled).abs().max() < 1e-7


def test_published_experts_lie_in_blocks():
    built = build("gpt-oss-mxfp4", dtype="bfloat16")
    names = stored(built)
    assert names["model.layers.0.mlp.experts.gate_up_proj_blocks"].shape == (4, 256, 4, 16)
    assert names["model.layers.0.mlp.experts.gate_up_proj_scales"].shape == (4, 256, 4)
    assert "model.layers.0.mlp.experts.gate_up_proj" not in names
    assert json.loads((built.directory / "config.json").read_text())["quantization_config"]["quant_method"] == "mxfp4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "qwen9"}, "no kind 'qwen9' of tiny models; there are qwen2, qwen3"),
        ({"kind": "llama", "vocab": "huge"}, "no vocab 'huge'; there are tiny and full"),
        ({"kind": "llama", "dtype": "int8"}, "no dtype 'int8'"),
    ],
)
def test_what_there_is_not_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_an_older_transformers_is_named(monkeypatch):
    architecture = tiny_model.Architecture("Qwen12", {})
    monkeypatch.setitem(tiny_model.ARCHITECTURES, "qwen12", architecture)
    with pytest.raises(InterfaceMissing, match="drives Qwen12ForCausalLM, which transformers 5"):
        build("qwen12")
