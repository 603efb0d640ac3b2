"""Remedies for new weights and adapters on their way to a running engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from vllm import LLM

__all__ = ["every_name", "forget_cached_prefixes", "load_checked"]


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
