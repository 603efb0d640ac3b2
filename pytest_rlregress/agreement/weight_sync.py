"""Whether a weight sync brings a model into an engine: every tensor, and what is computed with them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.agreement.engine_weights import engine_weights, stale_weights
from pytest_rlregress.agreement.explanation import name_tensors

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from pytest_rlregress.agreement.engine import Engine

    Sync = Callable[[Any, Iterable[tuple[str, torch.Tensor]]], Any]

# Engine and model differ by their kernels, the two sides of the floor by shapes only: measured 0.7 to 1.7 floors.
FLOORS = 10


@dataclass(frozen=True)
class SyncCheck:
    """What a weight sync left in the engine; true if it is the model. ``str`` says what did not arrive.

    Attributes:
        compared: Number of tensors by name, a tied one under each of its names.
        stale: Those that are not the model's.
        scored: Mean |difference| in nats of a token that the engine scores, and the model.
        generated: The same of tokens generated behind a prompt that the engine knew before the sync.
        tolerance: What of both is rounding, from a floor measured with the model.
    """

    compared: int
    stale: tuple[str, ...]
    scored: float
    generated: float
    tolerance: float

    def __bool__(self) -> bool:
        """Return whether every tensor arrived, and is what the engine computes with."""
        return not self.stale and self.scored <= self.tolerance and self.generated <= self.tolerance

    def __str__(self) -> str:
        """Say what arrived and what did not, in a sentence."""
        if self.stale:
            return (
                f"{len(self.stale)} of {self.compared} tensors are not the model's: {name_tensors(self.stale)}; "
                f"log-probabilities are {self.scored:.2g} nats a token from the model's"
            )
        said = f"all {self.compared} tensors are the model's"
        if not self.scored <= self.tolerance:  # NaN too
            return (
                f"{said}, and yet log-probabilities are {self.scored:.2g} nats a token off ({self.tolerance:.1g} is "
                "rounding): something that is computed from the weights, or beside them, is not"
            )
        if not self.generated <= self.tolerance:
            return (
                f"{said}, but behind a prompt that was cached under the old weights log-probabilities are "
                f"{self.generated:.2g} nats a token off ({self.tolerance:.1g} is rounding): reset the prefix cache "
                "after each update"
            )
        return f"{said}, log-probabilities agree to {max(self.scored, self.generated):.1g} nats a token"

    __repr__ = __str__


def check_weight_sync(engine: Engine, model: PreTrainedModel, sync: Sync) -> SyncCheck:
    """Fill the engine with random weights, sync, and compare every tensor and then log-probabilities with the model.

    With random weights before, a tensor that did not arrive cannot be right by chance or by an earlier sync; and what
    the engine caches of a prompt then is wrong afterwards.

    Args:
        engine: In this process, of the model's architecture; it keeps what ``sync`` leaves in it.
        model: Any float dtype and device; it is left as it is, its training mode too. What the engine should compute is
            what the model computes in the engine's dtype, in eval mode.
        sync: Called once, ``sync(llm, weights)``: the ``vllm.LLM``, and a list of pairs of name and tensor as
            ``named_parameters()`` gives them, so that a tied ``lm_head.weight`` is not among them.

    Raises:
        ValueError: The model is not the engine's (names or shapes), or has a parameter that is not finite.
        InterfaceMissing, NotImplementedError: From ``engine_weights``, or this vLLM takes no new weights.
    """
    from pytest_rlregress.remedies.rollout import reload_weights

    wanted = _parameters(model)
    _check_same_architecture(wanted, engine_weights(engine.llm))
    reload_weights(engine.llm, _random(model).items())
    prompt, sequences = _prompts(engine, model.config.get_text_config().vocab_size)
    _continue(engine, prompt)  # fills the cache
    sync(engine.llm, [(name, parameter.detach()) for name, parameter in model.named_parameters()])

    tied, found = _tied(model), engine_weights(engine.llm)
    stale = tuple(f"{name} (tied to {tied[name]})" if name in tied else name for name in stale_weights(found, wanted))
    reference = _as_the_engine_computes(model, engine.llm.model_config.dtype)
    scored = logprobs.mean_gap(engine.logprobs(sequences), logprobs.token_logprobs(reference, sequences))
    ids, sampled = _continue(engine, prompt)
    [expected] = logprobs.token_logprobs(reference, [[*prompt, *ids]])
    return SyncCheck(
        compared=len(wanted),
        stale=stale,
        scored=scored,
        generated=logprobs.mean_gap([sampled], [expected[-len(ids) :]]),
        tolerance=FLOORS * logprobs.floor(reference, sequences),
    )


def _parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return every parameter by each of its names."""
    return {name: parameter.detach() for name, parameter in model.named_parameters(remove_duplicate=False)}


def _tied(model: PreTrainedModel) -> dict[str, str]:
    """Return the further names of parameters that have several, each with the first."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if first[id(parameter)] != name}


def _check_same_architecture(model: Mapping[str, torch.Tensor], engine: Mapping[str, torch.Tensor]) -> None:
    for name in sorted({*model, *engine}):
        shapes = [list(one[name].shape) if name in one else "none" for one in (model, engine)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"not the engine's model: of {name} the model has {shapes[0]}, the engine {shapes[1]}")
    for name, tensor in model.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} of the model is not finite: whether it arrives cannot be told")


def _random(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights of the model's shapes, mean and spread; a constant such as a norm's ones gets a spread of its own."""
    import torch

    generator, drawn = torch.Generator().manual_seed(0), {}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach().float().cpu()
        spread = tensor.std(correction=0).item() or 0.1
        drawn[name] = tensor.mean() + spread * torch.randn(tensor.shape, generator=generator)
    return drawn


def _prompts(engine: Engine, vocabulary: int) -> tuple[list[int], list[list[int]]]:
    """Return a prompt of more than a block of the cache, where the engine's context has room, and short sequences."""
    length = min(400, engine.max_model_len - 9)
    prompt = [(step * 7919 + 13) % vocabulary for step in range(length)]
    return prompt, [[(start * 4099 + step * 6271) % vocabulary for step in range(32)] for start in range(4)]


def _continue(engine: Engine, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
    [completion] = engine.generate([prompt], 8, temperature=1.0, seed=0, ignore_eos=True)
    return completion.ids, completion.logprobs


def _as_the_engine_computes(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    if model.dtype == dtype and not model.training:
        return model
    cast: PreTrainedModel = copy.deepcopy(model).to(dtype).eval()
    return cast
