"""What a gap comes from that only the running engine can tell: its cache, its weights, its adapter, its dtype."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.agreement.causes import FACTOR, KnownRollouts, floor_of, together
from pytest_rlregress.agreement.computations import Row, Sampling
from pytest_rlregress.agreement.engine_weights import engine_weights
from pytest_rlregress.agreement.explanation import Cause, Explanation, name_tensors, nats
from pytest_rlregress.agreement.unchanged import unchanged
from pytest_rlregress.stack import InterfaceMissing

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from pytest_rlregress.agreement.engine import Engine

SEED = 0


def explain(
    engine: Engine,
    known: KnownRollouts,
    reported: Sequence[Sequence[float]],
    engine_prompts: list[list[int]],
    trainer: Sequence[Sequence[float]] | None,
    gap: float,
) -> Explanation:
    """Explain the gap between an engine's numbers and a trainer's: by the numbers first, then with the engine.

    Args:
        engine: What reported the numbers; its prefix cache may be reset.
        known: The model and the ids; its prompts are the trainer's.
        reported: Log-probabilities of each completion in nats, as the engine had them.
        engine_prompts: What the engine was given.
        trainer: The trainer's own numbers, None: the model's.
        gap: Mean |difference| in nats a token.
    """
    with unchanged(known.model), ExitStack() as stack:
        engine_side = known.explain(reported, "the engine")
        if not engine_side.explained:
            # What the search leaves in the cache would outlive the next update of the weights.
            stack.callback(engine.llm.reset_prefix_cache)
            engine_side = _CauseSearch(engine, known, reported, engine_side, stack).explain(engine_prompts)
        if trainer is None:
            return engine_side
        return together(gap, [engine_side, known.explain(trainer, "the trainer")])


@dataclass
class _CauseSearch:
    """The search: ``known.model`` is replaced by what the engine turns out to compute with."""

    engine: Engine
    known: KnownRollouts
    reported: Sequence[Sequence[float]]
    first: Explanation
    stack: ExitStack
    causes: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def explain(self, engine_prompts: list[list[int]]) -> Explanation:
        prompts = list(map(list, self.known.prompts))
        if prompts != engine_prompts:
            found = replace(self.known, prompts=engine_prompts).explain(self.reported, "the engine")
            if found.explained:
                said = _difference(engine_prompts, prompts)
                self.add("prompt-ids", "with the ids that the engine was given", *said, found.gap)
                return self.answer(found)
        generated = self.generate(Sampling())  # first: whatever runs in the engine fills its cache
        self.scored = self.score(self.engine)
        found = self.first
        for find in (self.find_dtype, self.find_adapter, self.find_weights, partial(self.find_cache, generated)):
            if not found.explained:
                found = find() or found
        return self.answer(found)

    def add(self, name: str, undone: str, sentence: str, remedy: str, remaining: float) -> None:
        self.causes.append(Cause(name, "the engine", undone, sentence, remedy, remaining))

    def answer(self, found: Explanation) -> Explanation:
        """Answer with what was found here, and with what the numbers say when that is undone."""
        if found.explained and self.causes:
            causes = (*self.causes, *found.causes)
            return replace(self.first, remaining=found.remaining, causes=causes, nearest=(), notes=tuple(self.notes))
        nearest = (*self.causes, *found.nearest) or self.first.nearest
        return replace(self.first, nearest=nearest, notes=tuple(self.notes))

    # What the engine does now.

    def sequences(self) -> list[list[int]]:
        """Prompts and completions, as long as the engine can score them."""
        pairs = zip(self.known.prompts, self.known.completions, strict=True)
        return [[*prompt, *ids][: self.engine.max_model_len - 1] for prompt, ids in pairs]

    def score(self, engine: Engine) -> list[list[float]]:
        """Return the engine's log-probabilities of prompts and completions at temperature 1; never from its cache."""
        return engine.logprobs(self.sequences())

    def generate(self, sampling: Sampling) -> tuple[list[list[int]], list[list[float]]]:
        """Generate the completions again: ids, and what the engine says of them."""
        options = {key: value for key, value in vars(sampling).items() if value != getattr(Sampling(), key)}
        room = self.engine.max_model_len
        pairs = zip(self.known.prompts, self.known.completions, strict=True)
        lengths = [max(1, min(len(ids), room - len(prompt))) for prompt, ids in pairs]
        drawn = self.engine.generate(self.known.prompts, lengths, seed=SEED, ignore_eos=True, **options)
        return [one.ids for one in drawn], [one.logprobs for one in drawn]

    def apart(self, model: PreTrainedModel, scored: Sequence[Sequence[float]] | None = None) -> float:
        return logprobs.mean_gap(scored or self.scored, logprobs.token_logprobs(model, self.sequences()))

    def floor(self, model: PreTrainedModel) -> float:
        if model is self.known.model and self.known.floor is not None:
            return self.known.floor
        pairs = zip(self.known.prompts, self.known.completions, strict=True)
        return floor_of(model, [Row(list(p), list(c), [0.0] * len(c)) for p, c in pairs if c])

    def is_right(self, model: PreTrainedModel, scored: Sequence[Sequence[float]] | None = None) -> bool:
        return self.apart(model, scored) <= FACTOR * self.floor(model)

    def numbers(self, model: PreTrainedModel) -> Explanation:
        """Explain the reported numbers as if the engine computed with this model."""
        self.known = replace(self.known, model=model, floor=self.floor(model))
        return self.known.explain(self.reported, "the engine")

    # The causes, the cheapest to test first. Each returns what is left to explain, None: it is not this.

    def find_dtype(self) -> Explanation | None:
        model = self.known.model
        dtype = self.engine.llm.llm_engine.vllm_config.model_config.dtype
        if model.dtype == dtype or self.is_right(model):
            return None
        name = str(dtype).removeprefix("torch.")
        cast = copy.deepcopy(model).to(dtype)
        own = str(model.dtype).removeprefix("torch.")
        found = self.numbers(cast)
        if self.is_right(cast) or found.explained:
            sentence = f"the engine computes in {name}, the model here in {own}"
            self.add(name, f"with the model in {name}", sentence, "compare in one dtype", found.gap)
        return found

    def find_adapter(self) -> Explanation | None:
        model = self.known.model
        if self.is_right(model):
            return None
        if adapters := _adapters(model):
            off = self.stack.enter_context(ExitStack())
            off.enter_context(model.disable_adapter())
            if self.is_right(model):
                found = self.numbers(model)
                sentence = f"the engine computes without the adapter {adapters[0]!r}"
                remedy = "send its lora_request with each request, or merge it into the weights that are synced"
                self.add("adapter", "with the model's adapter disabled", sentence, remedy, found.gap)
                return found
            bare = self.score(replace(self.engine, lora=None)) if self.engine.lora else None
            if bare and self.is_right(model, bare):
                remaining = self.apart(model, bare)
                sentence = f"the engine's adapter {self.engine.lora.lora_name!r} is not the model's {adapters[0]!r}"
                remedy = "a new lora_int_id for each version, or load_inplace=True, and reset the prefix cache"
                self.add("adapter", "without an adapter on either side", sentence, remedy, remaining)
                return replace(self.first, remaining=remaining, agrees=True)
            off.close()
        elif self.engine.lora:
            bare = self.score(replace(self.engine, lora=None))
            if self.is_right(model, bare):
                remaining = self.apart(model, bare)
                sentence = f"the engine applies the adapter {self.engine.lora.lora_name!r}, the model here has none"
                remedy = "compare with the PeftModel, or send no lora_request"
                self.add("adapter", "without the engine's adapter", sentence, remedy, remaining)
                return replace(self.first, remaining=remaining, agrees=True)
        return None

    def find_weights(self) -> Explanation | None:
        model = self.known.model
        if self.is_right(model):
            return None
        if _adapters(model) and not self.engine.lora:  # then the adapter can only be in the engine's weights
            model = copy.deepcopy(model).merge_and_unload()
        try:
            tensors = engine_weights(self.engine.llm)
            differing = _differing(model, tensors)
        except (InterfaceMissing, NotImplementedError, TypeError, KeyError) as error:
            hint = ", start it with VLLM_ENABLE_V1_MULTIPROCESSING=0" if "serializable" in str(error) else ""
            self.notes.append(f"the engine's weights could not be compared{hint}: {error}")
            return None
        if not differing:
            self.notes.append(
                f"all {len(tensors)} tensors of the engine are the model's, and yet it scores given ids "
                f"{nats(self.apart(model))} nats a token from it: what else they compute with differs, such as the "
                "positions' tables, or a kernel's copy of a weight"
            )
            return None
        other = _with(model, {name: tensors[name] for name in differing})
        said = f"{len(differing)} of the engine's {len(tensors)} tensors are not the model's: {name_tensors(differing)}"
        if not self.is_right(other):
            self.notes.append(f"{said}, and that is not all")
            return None
        found = self.numbers(other)
        remedy = "send every tensor at each update, the tied lm_head.weight too"
        undone = "with the engine's tensors in a copy of the model"
        self.add("weights", undone, said, remedy, found.gap)
        return found

    def find_cache(self, generated: tuple[list[list[int]], list[list[float]]]) -> Explanation | None:
        """Find a stale cache: what was generated before it was reset is off, and what is generated after isn't."""
        model = self.known.model
        if not self.is_right(model):
            return None
        before = replace(self.known, completions=generated[0], sampling=Sampling())
        stale = not before.explain(generated[1], "the engine").agrees
        self.engine.llm.reset_prefix_cache()
        ids, numbers = self.generate(self.known.sampling)
        after = replace(self.known, completions=ids).explain(numbers, "the engine")
        if not after.explained:
            self.notes.append("it scores given ids as the model does, but does not generate so after a reset either")
            return after
        if stale:
            self.add(
                "prefix-cache",
                "generated again after reset_prefix_cache()",
                "the engine's prefix cache is of other weights",
                "reset it after each update of weights or adapters, or give each policy a cache_salt",
                after.gap,
            )
            return after
        self.add(
            "not-of-this-engine",
            "generated again",
            "the engine is right now; the numbers are of other weights, of a stale cache that is gone, of sampling "
            "parameters that are not said here, or were changed on the way",
            "generate after the last update, and say every sampling parameter",
            after.gap,
        )
        return after


def _difference(engine_prompts: list[list[int]], prompts: list[list[int]]) -> tuple[str, str]:
    pairs = zip(engine_prompts, prompts, strict=True)
    engine, trainer = next((one, other) for one, other in pairs if one != other)
    place = next(
        (n for n, (a, b) in enumerate(zip(engine, trainer, strict=False)) if a != b), min(len(engine), len(trainer))
    )
    return (
        f"the prompts' ids differ: the engine's {len(engine)} tokens are not the trainer's {len(trainer)} from "
        f"token {place} on"
    ), "train on the ids that the engine was given"


def _adapters(model: Any) -> list[str]:
    """Return the names of a PeftModel's active adapters."""
    return list(getattr(model, "active_adapters", [])) if hasattr(model, "disable_adapter") else []


def _module(model: Any, name: str) -> tuple[Any, str]:
    """Return the module of a parameter by the checkpoint's name, and the parameter's name there."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    path, _, last = name.rpartition(".")
    module = base.get_submodule(path)
    return getattr(module, "base_layer", module), last


def _differing(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> list[str]:
    found = []
    for name, tensor in tensors.items():
        module, last = _module(model, name)
        if not tensor.equal(getattr(module, last).detach().to("cpu", tensor.dtype)):
            found.append(name)
    return found


def _with(model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> PreTrainedModel:
    """Return a copy of the model with other tensors; one that was tied to another is so no longer."""
    import torch

    other = copy.deepcopy(model)
    for name, tensor in tensors.items():
        module, last = _module(other, name)
        old = getattr(module, last)
        setattr(module, last, torch.nn.Parameter(tensor.to(old.device, old.dtype), requires_grad=False))
    return other
