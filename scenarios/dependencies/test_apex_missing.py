"""Megatron's gradient_accumulation_fusion without Apex' CUDA extension, which an Apex may well lack."""

from __future__ import annotations

import sys

import pytest

from pytest_rlregress.fixtures import wheel_index
from pytest_rlregress.scenarios.dependencies.megatron_engine import one_rank

EXTENSION = "fused_weight_gradient_mlp_cuda"
PYTHON_ONLY = {"apex/__init__.py": "", "apex/optimizers/__init__.py": ""}
PARTIAL = {
    "python-only": PYTHON_ONLY,
    "for-another-torch": {
        **PYTHON_ONLY,
        f"{EXTENSION}.py": "raise ImportError('undefined symbol: _ZN2at4cuda4blas19_cublasGetErrorEnum')",
    },
    "without-its-library": {**PYTHON_ONLY, f"{EXTENSION}.py": "raise OSError('libcudart.so.12: cannot open')"},
    "without-the-symbol": {**PYTHON_ONLY, f"{EXTENSION}.py": ""},
}
WHOLE = {**PYTHON_ONLY, f"{EXTENSION}.py": "def wgrad_gemm_accum_fp32(input, grad_output, main_grad): ...\n"}


def gradient_of_column_parallel(fusion):
    """The weight's gradient of Megatron's linear layer on one rank, of ones (4, 8) and two rows of ones."""
    import torch
    from megatron.core import ModelParallelConfig
    from megatron.core.tensor_parallel import ColumnParallelLinear

    with one_rank() as parallel_state:
        parallel_state.initialize_model_parallel()
        config = ModelParallelConfig(gradient_accumulation_fusion=fusion, use_cpu_initialization=True)
        layer = ColumnParallelLinear(8, 4, config=config, init_method=torch.nn.init.ones_, bias=False)
        layer.weight.main_grad = torch.zeros(4, 8)  # where fused gradients are added up
        layer(torch.ones(2, 1, 8))[0].sum().backward()
    return layer.weight.main_grad if fusion else layer.weight.grad


@pytest.mark.reproduces("apex-missing", fidelity="stand-in")
@pytest.mark.isolated
def test_the_symbol_that_megatron_wants():
    from fused_weight_gradient_mlp_cuda import wgrad_gemm_accum_fp32

    assert wgrad_gemm_accum_fp32


@pytest.mark.reproduces("apex-missing")
@pytest.mark.needs("megatron")
@pytest.mark.isolated
@pytest.mark.filterwarnings("ignore")
def test_megatron_with_fusion():
    gradient_of_column_parallel(fusion=True)


@pytest.mark.guards("apex-missing")
@pytest.mark.needs("megatron")
@pytest.mark.isolated
@pytest.mark.filterwarnings("ignore")
def test_megatron_with_what_can_be_had(subject):
    import torch

    gradient = gradient_of_column_parallel(fusion=subject("apex") is None)
    assert torch.equal(gradient, torch.full((4, 8), 2.0))


@pytest.mark.guards("apex-missing", fidelity="injected")
@pytest.mark.isolated
def test_nothing_installed_is_said(subject, monkeypatch):
    monkeypatch.setitem(sys.modules, EXTENSION, None)
    said = subject("apex")
    assert f"{EXTENSION}.wgrad_gemm_accum_fp32" in said
    assert "gradient_accumulation_fusion=False" in said, "it does not say which setting to change"


@pytest.mark.guards("apex-missing", fidelity="stand-in")
@pytest.mark.isolated
@pytest.mark.parametrize("files", PARTIAL.values(), ids=PARTIAL)
def test_a_partial_install_is_said(subject, monkeypatch, tmp_path, files):
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "apex", "0.1", files=files), EXTENSION)
    said = subject("apex")
    assert said, "the extension cannot be imported and nothing is said"
    assert f"{EXTENSION}.wgrad_gemm_accum_fp32" in said


@pytest.mark.guards("apex-missing", fidelity="stand-in")
@pytest.mark.isolated
def test_a_whole_install_is_none_of_its_business(subject, monkeypatch, tmp_path):
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "apex", "0.1", files=WHOLE), EXTENSION)
    assert subject("apex") is None
