"""Remedies for new weights and adapters on their way to a running engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from peft import PeftModel
    from vllm import LLM
    from vllm.lora.request import LoRARequest

__all__ = [
    "adapter_request",
    "every_name",
    "forget_cached_prefixes",
    "load_checked",
    "merged_weights",
    "step_if_finite",
]


def load_checked(
    load: Callable[[Iterator[tuple[str, torch.Tensor]]], object],
    weights: Iterable[tuple[str, torch.Tensor]],
    names: Collection[str],
) -> None:
    """Load weights into an engine, and raise unless all came that should, each once, none other, and finite.

    It raises once the engine has loaded, never out of the iterator: a reload of vLLM that is broken off half-way leaves
    layers that take no other. What should not have come is not handed on. After an error the engine computes with a
    mixture of two policies: sync again, completely, before it generates.

    Args:
        load: Called once with the pairs to load, as ``lambda pairs: reload_weights(llm, pairs)``; what it raises is
            passed on.
        weights: Pairs of name and float tensor, handed on in their order and not copied, each read when ``load`` asks
            for it.
        names: Every name that has to come, such as ``model.state_dict().keys()``.

    Raises:
        ValueError: Names did not come, are not among ``names`` or came more than once, or a tensor has NaN or infinity.
            The message names them, of more than eight the first.
    """
    came: set[str] = set()
    unknown, twice, not_finite = [], [], []

    def pairs() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            if name not in names:
                unknown.append(name)
            elif name in came:
                twice.append(name)
            else:
                came.add(name)
                if tensor.isfinite().all():
                    yield name, tensor
                else:
                    not_finite.append(name)

    load(pairs())
    missing = [name for name in names if name not in came]
    kinds = {"did not come": missing, "should not come": unknown, "came twice": twice, "not finite": not_finite}
    said = [
        f"{len(found)} {kind}: {', '.join(found[:8])}{', …' if len(found) > 8 else ''}"
        for kind, found in kinds.items()
        if found
    ]
    if said:
        raise ValueError(f"weight sync of {len(names)} tensors: {'; '.join(said)}")


def adapter_request(name: str, version: int, folder: str | Path) -> LoRARequest:
    """The request for a version of an adapter, which vLLM confuses with no other version and no other adapter.

    vLLM knows an adapter by its id, and what it cached of a prompt by the adapter's name and path: both have to be new
    for each version, also where its folder is rewritten in place.

    Args:
        name: Which adapter, where there are several.
        version: Of the adapter, 0 or more: such as the number of updates. Once a folder was rewritten, ask for no older
            version of it.
        folder: With ``adapter_config.json`` and the weights, as ``save_pretrained`` writes it.

    Returns:
        Its id, of 63 bits, and its name are made from name and version: the same for the same, in every process.
    """
    import hashlib

    from vllm.lora.request import LoRARequest

    label = f"{name}@{version}"
    number = int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "big") >> 1
    return LoRARequest(label, number or 1, str(folder))


def merged_weights(model: PeftModel) -> Iterator[tuple[str, torch.Tensor]]:
    """What to send of a model with an adapter to an engine without one: the base's names, the adapter merged into them.

    The model is left as it is, bit by bit: a layer is copied and merged when its turn comes. ``merge_adapter`` and
    ``unmerge_adapter`` round, and the base drifts with each sync.

    Args:
        model: Of PEFT, whole on this rank; LoRA, DoRA, ``modules_to_save`` and trained biases go with it.

    Yields:
        Pairs of name and tensor as ``named_parameters`` of the model without the adapter has them, a tied
        ``lm_head.weight`` too; without gradient.
    """
    import copy

    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    inside = None
    for path, module in model.get_base_model().named_modules():
        if inside is not None and path.startswith(inside):
            continue
        whole, recurse = module, False
        if isinstance(module, BaseTunerLayer):
            adapted = copy.deepcopy(module)
            adapted.merge()
            whole, recurse, inside = adapted.get_base_layer(), True, f"{path}."
        elif isinstance(module, ModulesToSaveWrapper):
            whole, recurse, inside = module.modules_to_save[module.active_adapters[0]], True, f"{path}."
        for name, parameter in whole.named_parameters(recurse=recurse):
            yield f"{path}.{name}", parameter.detach()


def every_name(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What to send of a model: every parameter by each of its names, a tied ``lm_head.weight`` too.

    ``named_parameters()`` has a tied parameter once, and so has a checkpoint; an engine that keeps a head of its own
    (vLLM on a CPU packs it) then goes on with the old one. To look whether it arrived, compare log-probabilities: the
    engine's parameter has the new values all the same.

    Yields:
        Pairs of name and tensor, each name once, without gradient, on the model's own storage; no buffers.
    """
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, parameter.detach()


def forget_cached_prefixes(llm: LLM) -> None:
    """Make the engine compute every prompt anew: to be called after each update of its weights.

    Requests that are running are computed again from their first token, with the new weights, and go on: the tokens
    they have stay. By itself vLLM resets nothing while a request runs, and only its log says so.

    Args:
        llm: An engine with its new weights.

    Raises:
        RuntimeError: The engine refuses: it would go on from what it cached under the old weights.
    """
    if not llm.reset_prefix_cache(reset_running_requests=True):
        raise RuntimeError("the engine did not reset its prefix cache: it would go on from keys of the old weights")


def step_if_finite(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip the gradients by their norm and step, but make no step where that norm is not finite.

    Then neither a weight nor the optimizer's state changes. The gradients are cleared in both cases, so that a bad one
    does not stay for the next step. A caller counts the steps that were left out, and stops where they are many.

    Args:
        optimizer: With the gradients of a step, whole on this rank and unscaled.
        max_norm: Largest 2-norm of all gradients together.

    Returns:
        The norm before clipping: NaN or infinity where no step was made.
    """
    import math

    import torch

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm
