"""An engine's and a trainer's log-probabilities of the same ids: how far apart, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.agreement.causes import FACTOR, KnownRollouts, floor_of, gap_of
from pytest_rlregress.agreement.completions import Completion
from pytest_rlregress.agreement.computations import Row, Sampling
from pytest_rlregress.agreement.engine import Engine, read_completions
from pytest_rlregress.agreement.engine_causes import explain
from pytest_rlregress.agreement.explanation import Explanation, nats
from pytest_rlregress.agreement.unchanged import unchanged

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from vllm import LLM, RequestOutput

    Trainer = Callable[[Any, list[list[int]], list[list[int]], float], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class AgreementComparison:
    """An engine's numbers beside a trainer's. True where they agree; ``str()`` of it says how far apart they are.

    ``repr()`` of it, which pytest shows of a bare ``assert agreement(…)``, names the causes as well.

    Attributes:
        gap: Mean |difference of log-probability| in nats a token.
        floor: The same for two ways through the model that are equal but for rounding.
        agrees: The gap is no more than a few floors.
        per_token: Engine minus trainer, in nats, a list for each completion.
    """

    gap: float
    floor: float
    agrees: bool
    per_token: list[list[float]] = field(repr=False)
    engine: Engine = field(repr=False)
    known: KnownRollouts = field(repr=False)
    engine_prompts: list[list[int]] = field(repr=False)
    reported: list[list[float]] = field(repr=False)
    trainer: list[list[float]] | None = field(repr=False)

    def __bool__(self) -> bool:
        """Return whether they agree."""
        return self.agrees

    def __str__(self) -> str:
        """Return the gap and the floor."""
        return str(Explanation(self.gap, self.floor, self.gap, agrees=self.agrees)).partition(": unexplained")[0]

    def __repr__(self) -> str:
        """Say the gap and its causes, as pytest cuts after 240 characters; the floor if they agree."""
        if self.agrees or not self._explanation.causes:
            return str(self if self.agrees else self._explanation)
        return f"{nats(self.gap)} nats a token: " + "; ".join(cause.sentence for cause in self._explanation.causes)

    def explain(self) -> Explanation:
        """Say what the gap comes from, by undoing one cause at a time, in the model and in the running engine.

        Where the numbers alone do not tell, the engine scores and generates a few times, and its prefix cache is
        reset. Nothing else is changed: its weights and adapters, the model, its modes and dtype, and the random states
        of Python, numpy and torch are those of before. Comparing weights, and another dtype, takes a copy of the
        model.
        """
        return self._explanation

    @cached_property
    def _explanation(self) -> Explanation:
        return explain(self.engine, self.known, self.reported, self.engine_prompts, self.trainer, self.gap)


def compare(
    engine: Engine | LLM,
    model: PreTrainedModel,
    completions: Sequence[Completion | RequestOutput],
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    trainer: Trainer | Sequence[Sequence[float]] | None = None,
    lora: Any = None,
    bos_id: int | None = None,
    pad_id: int | None = None,
    **sampling: float,
) -> AgreementComparison:
    """Compare what an engine said of the tokens that it drew with what the trainer says of them.

    Args:
        engine: The fixture ``vllm_engine`` or a ``vllm.LLM``; in this process, if its weights are to be compared.
        model: The trainer's causal language model, or a PeftModel with its adapter. It is evaluated without dropout.
        completions: From ``Engine.generate``, or vLLM's outputs of requests with ``logprobs=0`` or more. A dozen tell
            as much as a thousand.
        prompts: The ids that the trainer trains on, one list for each completion (``n`` of a request are ``n``);
            default what the engine was given.
        trainer: The trainer's own numbers, a list for each completion, or the function that computes them,
            ``trainer(model, prompts, completions, temperature)``. Default: ``model``, row by row without padding.
        lora: The LoRARequest that the completions were drawn with; default that of the outputs or of the engine.
        bos_id: Default ``model.config.bos_token_id``.
        pad_id: What the trainer pads with; default ``model.config.pad_token_id``.
        **sampling: What the completions were drawn with: ``temperature``, ``top_p``, ``top_k``, ``min_p``,
            ``repetition_penalty``.

    Raises:
        ValueError: There are no log-probabilities, they are not as many as tokens, or there is no token at all.
        TypeError: A sampling parameter has another name.
    """
    if not isinstance(engine, Engine):
        engine = Engine.of(engine)
    drawn = [
        one
        for output in completions
        for one in ([output] if isinstance(output, Completion) else read_completions(output))
    ]
    requests = [one for output in completions if (one := getattr(output, "lora_request", None))]
    engine = replace(engine, lora=lora or next(iter(requests), engine.lora))
    engine_prompts = [one.prompt_ids for one in drawn]
    ids = [one.ids for one in drawn]
    given = engine_prompts if prompts is None else [list(prompt) for prompt in prompts]
    known = KnownRollouts(model, given, ids, Sampling(**sampling), bos_id, pad_id)  # type: ignore[arg-type]
    reported = [one.logprobs for one in drawn]
    rows = [Row(p, c, n) for p, c, n in zip(given, ids, reported, strict=True) if c]
    if not rows:
        raise ValueError("no token to compare: every completion is empty")
    with unchanged(model):
        measured = floor_of(model, rows)
        own = _own(known)
    known, floor = replace(known, floor=measured), known.sampling.scaled(measured)
    if callable(trainer):
        trainer = trainer(model, given, ids, known.sampling.temperature)
    numbers = None if trainer is None else [list(map(float, row)) for row in trainer]
    said = own if numbers is None else numbers
    for row, said_of in zip(ids, said, strict=True):
        Row([0], row, said_of)  # as many numbers as tokens
    gap = gap_of(reported, said)
    apart = [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(reported, said, strict=True)]
    return AgreementComparison(
        gap, floor, gap <= FACTOR * floor, apart, engine, known, engine_prompts, reported, numbers
    )


def _own(known: KnownRollouts) -> list[list[float]]:
    """Return the model's numbers of the completions."""
    sequences = [[*prompt, *ids] for prompt, ids in zip(known.prompts, known.completions, strict=True)]
    rows = logprobs.token_logprobs(known.model, sequences, known.sampling.temperature or 1.0)
    return [row[len(row) - len(ids) :] for row, ids in zip(rows, known.completions, strict=True)]
