import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.mbridge_missing.megatron_engine import (
    configuration_of_engine,
    one_rank,
)
from pytest_rlregress.stack.lazy import torch

# Megatron looks for the extension as it is imported
pytestmark = [
    pytest.mark.isolated,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.needs("megatron", "verl-trainer"),
]

EXTENSION = "fused_weight_gradient_mlp_cuda"
FUSION = "gradient_accumulation_fusion"


def configured_by_engine(folder, override):
    """What verl's engine makes of ``override_transformer_config``, by mbridge."""
    settings = {"vanilla_mbridge": True, "override_transformer_config": override}
    return configuration_of_engine(folder, **settings)


def configured_without_bridge(folder, override):
    """The same by verl's own converter, for use_mbridge=False."""
    from transformers import AutoConfig
    from verl.models.mcore import hf_to_mcore_config

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    model = AutoConfig.for_model("qwen2", num_hidden_layers=1, vocab_size=16, **sizes)
    model.architectures = ["Qwen2ForCausalLM"]
    with one_rank() as parallel_state:
        parallel_state.initialize_model_parallel()
        return hf_to_mcore_config(model, torch.bfloat16, **override)


CONFIGURED = {
    "engine": pytest.param(configured_by_engine, marks=pytest.mark.needs("mbridge"), id="engine"),
    "without-bridge": pytest.param(configured_without_bridge, id="without-bridge"),
}


def causal_attention():
    """Megatron's attention between its linear layers, in torch's words: megatron-core's own is for CUDA alone."""

    class CausalAttention(torch.nn.Module):
        def __init__(self, **settings):
            super().__init__()

        def forward(self, query, key, value, *rest, **settings):
            rows = [tensor.permute(1, 2, 0, 3) for tensor in (query, key, value)]  # [batch, heads, tokens, size]
            attended = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True)
            return attended.permute(2, 0, 1, 3).flatten(2)

    return CausalAttention


def layers():
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = causal_attention()
    return spec


def build(config, spec):
    """Megatron's model on one rank's CPU."""
    from megatron.core.models.gpt import GPTModel

    config.use_cpu_initialization = True
    return GPTModel(config, spec, 16, 32, position_embedding_type="learned_absolute").bfloat16()


@pytest.mark.reproduces("apex-missing")
@pytest.mark.parametrize("configured", CONFIGURED.values())
def test_model_with_fusion(tmp_path, configured):
    config = configured(tmp_path, {FUSION: True})
    spec = layers()
    with one_rank() as parallel_state:
        parallel_state.initialize_model_parallel()
        with act():
            build(config, spec)


@pytest.mark.guards("apex-missing")
@pytest.mark.parametrize("override", [{FUSION: False}, {}], ids=["the-key", "default"])
@pytest.mark.parametrize("configured", CONFIGURED.values())
def test_model_without_fusion_trains(tmp_path, configured, override):
    config = configured(tmp_path, override)
    spec = layers()
    ids = torch.arange(8)[None]
    with one_rank() as parallel_state:
        parallel_state.initialize_model_parallel()
        with act():
            model = build(config, spec)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            losses = []
            for _ in range(8):
                loss = model(ids, ids, None, labels=ids.roll(-1)).float().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    without = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert without == [], "these weights have no gradient"
    assert losses[-1] < losses[0] - 0.1, f"the loss did not fall: {losses}"


@pytest.mark.guards("apex-missing")
def test_advice_names_the_key_where_megatron_refuses(subject, tmp_path):
    """Either nothing is missing and Megatron builds with the fusion, or the key that is advised is named."""
    with act():
        said = subject("apex")
    if said is None:
        with one_rank() as parallel_state:
            parallel_state.initialize_model_parallel()
            build(configured_without_bridge(tmp_path, {FUSION: True}), layers())
    else:
        assert f"{EXTENSION}.wgrad_gemm_accum_fp32" in said
        assert f"{FUSION}=False" in said, "it does not say which setting to change"


PARTIAL = {
    "python-only": None,
    "for-another-torch": "raise ImportError('undefined symbol: _ZN2at4cuda4blas19_cublasGetErrorEnum')",
    "without-its-library": "raise OSError('libcudart.so.12: cannot open shared object file')",
    "without-the-symbol": "",
}


@pytest.mark.guards("apex-missing", fidelity="stand-in")
@pytest.mark.parametrize("extension", PARTIAL.values(), ids=PARTIAL)
def test_partial_apex_is_named(subject, monkeypatch, tmp_path, extension):
    """Packages of a few lines stand for builds of Apex that need CUDA."""
    files = {"apex/__init__.py": ""}
    if extension is not None:
        files[f"{EXTENSION}.py"] = extension
    wheel = wheel_index.wheel(tmp_path, "apex", "0.1", files=files)
    wheel_index.put_in_front(monkeypatch, wheel, EXTENSION)
    with act():
        assert f"{EXTENSION}.wgrad_gemm_accum_fp32" in str(subject("apex"))
