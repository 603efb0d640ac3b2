"""SIGFPE in the LM head on H20: strided token ids were blamed, it was cuBLAS. A GPU tells the two apart."""

from __future__ import annotations

from importlib import metadata
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pytest

from pytest_rlregress.stack import library_version, mapped_libraries

CURED = (12, 3, 4, 1)  # nvidia-cublas-cu12
VIEWS = {  # of a padded batch of ids, [4, 12]
    "columns": lambda ids: ids[:, 3:11],
    "every-second-row": lambda ids: ids[::2],
    "transposed": lambda ids: ids.t().contiguous().t(),
    "expanded": lambda ids: ids[:1].expand(4, -1),
    "int32": lambda ids: ids.int()[:, 3:11],
}
GEMMS = {  # rows, inner, outer, dtype, operation: those reported to divide by zero, then a 7B's LM head
    "linear-2x1024x18432": (2, 1024, 18432, "bfloat16", "linear"),
    "matmul-64x14688x1536": (64, 14688, 1536, "float16", "matmul"),
    "matmul-8x1024x4096": (8, 1024, 4096, "bfloat16", "matmul"),
    "lm-head-1": (1, 3584, 152064, "bfloat16", "lm-head"),
    "lm-head-8": (8, 3584, 152064, "bfloat16", "lm-head"),
    "lm-head-256": (256, 3584, 152064, "bfloat16", "lm-head"),
}
GPU = pytest.mark.hw(capability=">=8.0")
EVERY_VIEW = pytest.mark.parametrize("view", VIEWS)


def ids_of(view):
    import torch

    padded = torch.arange(500, 548).view(4, 12)
    padded[1:, :4] = 0
    return VIEWS[view](padded)


def model_logits(model, ids):
    import torch

    with torch.inference_mode():
        return model(input_ids=ids).logits


def engine_logits(engine, ids):
    """The engine's own VocabParallelEmbedding and LM head: float32 `(tokens, vocabulary)`."""
    import torch

    def through(model):
        device = next(model.parameters()).device
        with torch.inference_mode():
            return model.compute_logits(model.model.embed_tokens(ids.to(device)).flatten(0, 1)).float().cpu()

    return engine.llm.apply_model(through)[0]


def gemm(name, strided):
    """Look rows up by strided or contiguous ids, multiply them on the GPU; a fault ends the process."""
    import torch

    rows, inner, outer, dtype, operation = GEMMS[name]
    options = {"device": "cuda", "dtype": getattr(torch, dtype)}
    ids = torch.arange(2 * rows, device="cuda")[::2]
    table = torch.nn.Embedding(2 * rows, inner, **options)
    hidden = table(ids if strided else ids.contiguous())
    if operation == "matmul":
        made = hidden @ torch.randn(inner, outer, **options)
    else:  # a bias sends it to cublasLt
        made = torch.nn.Linear(inner, outer, bias=operation == "linear", **options)(hidden)
    assert made.isfinite().all(), f"{name}: not finite"


def check_contiguous(make_contiguous, ids):
    """What holds of the remedy: int64, contiguous, the same ids."""
    made = make_contiguous(ids)
    assert made.dtype == ids.long().dtype, f"{made.dtype} ids: an index has 64 bits"
    assert made.is_contiguous(), f"strides {made.stride()} of shape {tuple(made.shape)}"
    assert made.equal(ids.long()), "not the same ids"
    with pytest.raises(ValueError, match="bfloat16"):  # which does not hold every id
        make_contiguous(ids.bfloat16())
    return made


@pytest.mark.reproduces("sigfpe-embedding")
@EVERY_VIEW
def test_strided_ids_through_model(tiny_qwen, view):
    model_logits(tiny_qwen.model(), ids_of(view))


@pytest.mark.reproduces("sigfpe-embedding")
@EVERY_VIEW
def test_strided_ids_through_engine(vllm_engine, view):
    engine_logits(vllm_engine, ids_of(view))


@pytest.mark.guards("sigfpe-embedding")
@EVERY_VIEW
def test_contiguous_ids_mean_the_same(tiny_qwen, vllm_engine, subject, view):
    import torch

    ids = ids_of(view)
    made = check_contiguous(subject, ids)
    model = tiny_qwen.model()
    torch.testing.assert_close(model_logits(model, made), model_logits(model, ids))
    torch.testing.assert_close(engine_logits(vllm_engine, made), engine_logits(vllm_engine, ids))


@GPU
@pytest.mark.isolated
@pytest.mark.reproduces("sigfpe-embedding", fidelity="real")
@pytest.mark.parametrize("name", GEMMS)
def test_gemm(name):
    print({family: [str(path) for path in paths] for family, paths in mapped_libraries().items()})
    gemm(name, strided=True)


@GPU
@pytest.mark.isolated
@pytest.mark.guards("sigfpe-embedding", fidelity="real")
def test_fault_follows_cublas_and_not_strides():
    """Contiguity, mapped cuBLAS, shape and dtype: each product in a process of its own."""
    ended = {}
    for name, strided in product(GEMMS, (True, False)):
        process = get_context("fork").Process(target=gemm, args=(name, strided))  # safe: no CUDA in this process
        process.start()
        process.join()
        ended[name, strided] = process.exitcode  # -8: SIGFPE
    versions = {library_version(path) for path in mapped_libraries().get("libcublasLt", [])}
    print(f"cublasLt {versions}, exit status by (product, strided): {ended}")
    assert all(ended[name, True] == ended[name, False] for name in GEMMS), f"strides decide: {ended}"
    cured = all(version and tuple(map(int, version.split("."))) >= CURED for version in versions)
    assert not (cured and any(ended.values())), f"cublasLt {versions} should be cured: {ended}"


@GPU
@pytest.mark.isolated
@pytest.mark.guards("sigfpe-embedding", fidelity="real")
def test_mapped_cublas_is_the_installed_one():
    gemm("matmul-8x1024x4096", strided=False)
    mapped = {path.resolve() for family in ("libcublas", "libcublasLt") for path in mapped_libraries()[family]}
    wheels = [d for d in metadata.distributions() if (d.metadata["Name"] or "").startswith("nvidia-cublas")]
    if not wheels:  # this torch takes the system's library: nothing was promised
        return
    promised = {Path(str(wheel.locate_file(file))).resolve() for wheel in wheels for file in wheel.files or []}
    assert mapped <= promised, f"mapped is {sorted(map(str, mapped - promised))}, not what {wheels[0].name} installed"
