"""How log-probabilities of a completion come about, with and without the usual mistakes.

A computation has four stages: weights, input, distribution, output. A :class:`Hypothesis` changes one of them.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

#: The stages in the order of a computation.
STAGES = ("weights", "input", "distribution", "output")


@dataclass(frozen=True)
class Sampling:
    """What completions were drawn with, by vLLM's names: ``top_k`` 0 or -1 is off, as 1.0 is for ``top_p``."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def scaled(self, floor: float) -> float:
        """Return a floor measured at temperature 1, at this one: differences of logits are divided by it too."""
        return floor * max(1.0, 1 / (self.temperature or 1.0))


@dataclass(frozen=True)
class Row:
    """One completion with what a side said of its tokens: ``reported`` has a number for each of ``completion``."""

    prompt: list[int]
    completion: list[int]
    reported: list[float]

    def __post_init__(self) -> None:
        """Check that the three go together."""
        if not self.prompt:
            raise ValueError("a prompt has no token, so that the first one of its completion has no log-probability")
        if len(self.completion) != len(self.reported):
            raise ValueError(
                f"a completion has {len(self.completion)} tokens and {len(self.reported)} log-probabilities: "
                "one is needed for each token"
            )


@dataclass(frozen=True)
class Input:
    """What the model is given: ids, where in them the completion begins, positions where they do not count from 0."""

    ids: list[int]
    start: int
    positions: list[int] | None = None


@dataclass(frozen=True)
class Hypothesis:
    """One mistake, as a change of one stage. ``change`` is called with the stage's own arguments:

    weights: ``model -> model``; input: ``row -> Input``; distribution: ``logits (n, V), contexts -> scores (n, V)``,
    where ``contexts`` are the ids before each of the n positions; output: ``scores, row -> n numbers``, where
    ``scores`` has one more, of what would follow.

    Args:
        name: What it is called in reports and tests.
        stage: One of :data:`STAGES`.
        undone: What was changed to test it: "at temperature 1".
        cause: What is the matter, with ``{who}`` for whose numbers they are.
        change: The stage with the mistake.
        remedy: What to do, where the numbers are the engine's and where they are the trainer's.
    """

    name: str
    stage: str
    undone: str
    cause: str
    change: Callable[..., Any] = field(compare=False, repr=False)
    remedy: tuple[str, str] = ("", "")


def plain_input(row: Row) -> Input:
    """Prompt and completion, nothing before them, positions from 0."""
    return Input([*row.prompt, *row.completion], len(row.prompt))


def at_temperature(temperature: float) -> Callable[[torch.Tensor, Any], torch.Tensor]:
    """Log-probabilities of logits divided by a temperature; 0, which is greedy, counts as 1, as in vLLM."""
    return lambda logits, contexts: (logits / (temperature or 1.0)).log_softmax(-1)


def sampled_distribution(sampling: Sampling) -> Callable[[torch.Tensor, list[list[int]]], torch.Tensor]:
    """Log-probabilities of what vLLM draws from: penalty, temperature, min_p, top_k, top_p, in that order."""

    def change(logits: torch.Tensor, contexts: list[list[int]]) -> torch.Tensor:
        if sampling.repetition_penalty != 1.0:
            logits = logits.clone()
            for row, context in zip(logits, contexts, strict=True):
                seen = sorted(set(context))
                row[seen] = row[seen] * sampling.repetition_penalty ** (1 - 2 * (row[seen] > 0).float())
        scores = logits / (sampling.temperature or 1.0)
        if sampling.min_p > 0:
            probabilities = scores.softmax(-1)
            least = sampling.min_p * probabilities.amax(-1, keepdim=True)
            scores = scores.masked_fill(probabilities < least, -float("inf"))
        if 0 < sampling.top_k < scores.shape[-1]:
            scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[:, -1:], -float("inf"))
        if sampling.top_p < 1:
            ordered, order = scores.sort(-1)
            outside = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
            outside[:, -1] = False
            scores = scores.scatter(-1, order, ordered.masked_fill(outside, -float("inf")))
        return scores.log_softmax(-1)

    return change


def of_tokens(scores: torch.Tensor, row: Row) -> torch.Tensor:
    """Return the score of each token of the completion, given the tokens before it."""
    return scores[:-1].gather(-1, _ids(row.completion, scores))[:, 0]


def of_tokens_before(scores: torch.Tensor, row: Row) -> torch.Tensor:
    """Return the score of the token before each; NaN for the first, where anything may stand."""
    own = of_tokens(scores, row)
    return own.new_tensor([float("nan"), *own[:-1].tolist()])


def of_tokens_after(scores: torch.Tensor, row: Row) -> torch.Tensor:
    """Return the score of the token after each; NaN for the last, where anything may stand."""
    own = of_tokens(scores, row)
    return own.new_tensor([*own[1:].tolist(), float("nan")])


def given_themselves(scores: torch.Tensor, row: Row) -> torch.Tensor:
    """Return the score of each token by the distribution of the position it stands on: what would follow it."""
    return scores[1:].gather(-1, _ids(row.completion, scores))[:, 0]


def _ids(ids: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.tensor(ids, device=like.device)[:, None]


def accepts(model: PreTrainedModel, argument: str) -> bool:
    """Return whether the model's ``forward`` has an argument; a PeftModel's is its base model's."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return argument in inspect.signature(base.forward).parameters


def rounded(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a copy of the model with every weight rounded to a dtype; it computes in the dtype of the original."""
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype).to(parameter.dtype)
    return other


def predicted(
    model: PreTrainedModel,
    rows: Sequence[Row],
    temperature: float,
    combinations: Sequence[tuple[Hypothesis, ...]],
) -> list[list[list[float]]]:
    """Compute each row's log-probabilities under each combination of hypotheses, ``()``: without a mistake.

    A combination has one hypothesis a stage at most. One pass of the model for each row and each pair of weights and
    input; NaN where a combination says nothing of a token.
    """
    tree: dict[Any, Any] = {}
    for place, combination in enumerate(combinations):
        chosen = {hypothesis.stage: hypothesis for hypothesis in combination}
        weights, given, distribution, output = (chosen.get(stage) for stage in STAGES)
        branch = tree.setdefault(weights, {}).setdefault(given, {}).setdefault(distribution, [])
        branch.append((place, output.change if output else of_tokens))
    found: list[list[list[float]]] = [[[] for _ in rows] for _ in combinations]
    for weights, inputs in tree.items():
        computes = weights.change(model) if weights else model
        for (given, distributions), (number, row) in itertools.product(inputs.items(), enumerate(rows)):
            entered = given.change(row) if given else plain_input(row)
            logits = logits_of(computes, entered)
            contexts = [entered.ids[: entered.start + step] for step in range(len(logits))]
            for distribution, reads in distributions.items():
                change = distribution.change if distribution else at_temperature(temperature)
                scores = change(logits, contexts)
                for place, read in reads:
                    found[place][number] = read(scores, row).tolist()
    return found


def logits_of(model: PreTrainedModel, given: Input) -> torch.Tensor:
    """Float32 logits ``(tokens + 1, V)``, from the one that predicts the completion's first token to its end."""
    import torch

    count = len(given.ids) - given.start + 1
    options: dict[str, Any] = {"use_cache": False}
    if accepts(model, "logits_to_keep"):
        options["logits_to_keep"] = count
    if given.positions is not None:
        options["position_ids"] = torch.tensor([given.positions], device=model.device)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([given.ids], device=model.device), **options).logits
    return logits[0, -count:].float()
