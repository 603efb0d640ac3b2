"""The parameters that a vLLM engine computes with, by the names of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_rlregress.stack import InterfaceMissing

if TYPE_CHECKING:
    import torch
    from vllm import LLM


def engine_weights(llm: LLM) -> dict[str, torch.Tensor]:
    """Return the engine's weights by Hugging Face name: the effective matrices, not the storage they came from.

    A linear layer is applied to the identity, an embedding to every id: on a CPU vLLM repacks dense layers and keeps
    a copy of a tied head, so that ``weight`` is empty or not what is multiplied with. Fused layers are split
    (``qkv_proj``, ``gate_up_proj``); a tied head is there too, as ``lm_head.weight``.

    Args:
        llm: An engine in this process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``) on one rank, of a dense decoder.

    Returns:
        Copies on the CPU in the engine's dtype, rows that only pad the vocabulary left out. A product with zero does
        not forget NaN or infinity: one in a row of a matrix makes the whole row NaN.

    Raises:
        InterfaceMissing: This vLLM gives no access to the model.
        NotImplementedError: A parameter has no known place in the checkpoint (experts, tensor parallelism, a model that
            vLLM names otherwise); the message names it.
    """
    if not hasattr(llm, "apply_model"):
        import vllm

        raise InterfaceMissing(f"needs LLM.apply_model, which vllm {vllm.__version__} doesn't have")
    found = llm.apply_model(weights_of)
    if len(found) != 1:
        raise NotImplementedError(f"the engine has {len(found)} workers: of one rank only")
    weights: dict[str, torch.Tensor] = found[0]
    return weights


def stale_weights(engine: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Return the names of the engine's weights that are not the given ones in the engine's dtype.

    Args:
        engine: As ``engine_weights`` returns them.
        weights: A model's state dict, which has a tied head under its own name too.
    """
    return tuple(name for name, tensor in engine.items() if not tensor.equal(weights[name].to("cpu", tensor.dtype)))


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what ``engine_weights`` does, of the model in its own process.

    Raises:
        NotImplementedError: As there.
    """
    import torch

    mapper = getattr(model, "hf_to_vllm_mapper", None)
    renames = [kind for kind in ("prefix", "substr", "suffix", "regex") if getattr(mapper, f"orig_to_new_{kind}", None)]
    if renames:
        raise NotImplementedError(f"vLLM renames the parameters of {type(model).__name__} by {', '.join(renames)}")
    with torch.no_grad():
        found = {name: tensor.detach().to("cpu", copy=True) for name, tensor in _named(model)}
    return found


def _named(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    embedding: Any = None
    head = False
    # A module in two places is there twice: in vLLM 0.13 a tied head is the embedding itself.
    for path, module in model.named_modules(remove_duplicate=False):
        name = path.replace(".base_layer", "")  # with LoRA
        if isinstance(module, ParallelLMHead) or (isinstance(module, VocabParallelEmbedding) and name == "lm_head"):
            head = True
            yield from _head(name, module)
        elif isinstance(module, VocabParallelEmbedding):
            embedding = module
            yield f"{name}.weight", _looked_up(module)
        elif isinstance(module, LinearBase):
            yield from _linear(name, module, getattr(model, "packed_modules_mapping", {}))
        else:
            yield from _as_it_is(name, module)
    if embedding is not None and not head:  # as in Gemma, whose logits are computed with the embedding's module
        yield from _head("lm_head", embedding)


def _as_it_is(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a norm's weight and the like, which no kernel wants in another layout."""
    for parameter, tensor in module.named_parameters(recurse=False):
        if tensor.ndim > 1:
            raise NotImplementedError(
                f"vLLM's parameter {name}.{parameter} {list(tensor.shape)} ({type(module).__name__}) has no known name "
                "in a checkpoint"
            )
        yield f"{name}.{parameter}", tensor


def _linear(name: str, layer: Any, fused: dict[str, list[str]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Matrix and bias of a layer, of each of the layers that were fused into it."""
    import torch

    if getattr(layer, "tp_size", 1) != 1:
        raise NotImplementedError(f"{name}.weight: tensor parallelism of {layer.tp_size}")
    weight = _multiplied(layer, layer.input_size)
    bias = getattr(layer, "bias", None)
    if bias is not None:
        zero = torch.zeros(1, layer.input_size, dtype=layer.params_dtype, device=bias.device)
        bias = layer.quant_method.apply(layer, zero, bias)[0]
    parent, _, last = name.rpartition(".")
    sizes = list(getattr(layer, "output_partition_sizes", None) or getattr(layer, "output_sizes", [len(weight)]))
    names = fused.get(last, [last]) if len(sizes) > 1 else [last]
    if len(names) != len(sizes) or sum(sizes) != len(weight):
        raise NotImplementedError(
            f"{name}.weight {list(weight.shape)}: {len(sizes)} layers in one, and {len(names)} known names for them"
        )
    for part, rows in zip(names, weight.split(sizes), strict=True):
        yield f"{parent}.{part}.weight", rows
    if bias is not None:
        for part, rows in zip(names, bias.split(sizes), strict=True):
            yield f"{parent}.{part}.bias", rows


def _head(name: str, head: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", _multiplied(head, head.embedding_dim)[: head.org_vocab_size]
    if getattr(head, "bias", None) is not None:
        yield f"{name}.bias", head.bias[: head.org_vocab_size]


def _looked_up(embedding: Any) -> torch.Tensor:
    import torch

    ids = torch.arange(embedding.org_vocab_size, device=embedding.weight.device)
    looked_up: torch.Tensor = embedding(ids)
    return looked_up


def _multiplied(layer: Any, width: int) -> torch.Tensor:
    """Return the matrix ``[out, width]`` that a layer multiplies with: exact, as each sum has one term but zeros."""
    import torch

    device = next(layer.parameters()).device
    dtype = getattr(layer, "params_dtype", None) or layer.weight.dtype
    product: torch.Tensor = layer.quant_method.apply(layer, torch.eye(width, dtype=dtype, device=device), None)
    return product.t()
