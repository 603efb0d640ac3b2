"""Completions, what the trainer's model says of them, and how far apart engine and trainer may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress.agreement.logprobs import floor, token_logprobs

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from pytest_rlregress.agreement.completions import Completion
    from pytest_rlregress.agreement.engine import Engine

PROMPTS = [[(start * 91 + step * 37) % 1000 + 5 for step in range(20)] for start in range(4)]


def on_engine(name: str) -> Any:
    """Mark a test that needs an engine, in the child of those with the same one: one engine at a time in a process."""
    group = pytest.mark.isolated(group=f"sampling: {name}")
    return lambda test: group(pytest.mark.needs("vllm-engine")(test))


RAW = on_engine("log-probabilities by default")
PUBLISHED = on_engine("a published model folder")
STARTS = pytest.mark.isolated(group="sampling: engines that a test starts")
PROCESSED = on_engine("processed log-probabilities")


def sample(engine: Engine, **sampling: Any) -> list[Completion]:
    """Four completions of 24 tokens each."""
    return engine.generate(PROMPTS, 24, seed=7, ignore_eos=True, **sampling)


def eager() -> AbstractContextManager[Any]:
    """Keep torch.compile off vLLM's helpers on a CPU, which ``enforce_eager`` leaves on: it would take seconds."""
    import torch

    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def run(engine: Engine, prompts: Sequence[Any], params: Any = None) -> list[Any]:
    """``LLM.generate`` as it is, with ``vllm.SamplingParams`` or without."""
    with eager():
        return list(engine.llm.generate(prompts, params, use_tqdm=False))


def completions_of(outputs: Sequence[Any]) -> list[Completion]:
    """The first completion of each of vLLM's outputs; without log-probabilities where none were asked for."""
    from pytest_rlregress.agreement.completions import Completion

    made = []
    for output in outputs:
        answer = output.outputs[0]
        ids = list(answer.token_ids)
        logprobs = [at[token].logprob for token, at in zip(ids, answer.logprobs or (), strict=bool(answer.logprobs))]
        made.append(Completion(list(output.prompt_token_ids), ids, logprobs, answer.finish_reason))
    return made


def trainer_logprobs(
    model: PreTrainedModel, completions: Sequence[Completion], temperature: float = 1.0
) -> list[list[float]]:
    """What the trainer's model says of the completions' tokens: of the whole vocabulary, at that temperature."""
    rows = token_logprobs(model, [one.prompt_ids + one.ids for one in completions], temperature)
    return [row[len(one.prompt_ids) - 1 :] for row, one in zip(rows, completions, strict=True)]


def trainer_logits(
    model: PreTrainedModel, completions: Sequence[Completion]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each completion the trainer's logits ``[tokens, vocabulary]`` of it, float32, and its ids ``[tokens]``."""
    import torch

    for one in completions:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([one.prompt_ids + one.ids])).logits[0]
        yield logits[len(one.prompt_ids) - 1 : -1].float(), torch.tensor(one.ids)


def tolerance(model: PreTrainedModel, completions: Sequence[Completion], temperature: float = 1.0) -> float:
    """How far engine and trainer may be apart, in nats a token, mean.

    Ten times as far as two ways of computing by the trainer are (7e-7), which a low temperature multiplies as it does
    the logits. Engine and trainer were 1.1 times as far apart.
    """
    return 10 * floor(model, [one.prompt_ids + one.ids for one in completions]) / min(temperature, 1.0)


def logits_of(*probabilities: float) -> Any:
    """Return logits [1, ids], float64, of tokens with these probabilities."""
    import torch

    return torch.tensor([probabilities], dtype=torch.float64).log()
