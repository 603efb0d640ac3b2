"""The mistakes that a model alone can test: each with what undoes it, what it is called and what to do about it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from pytest_rlregress.agreement import computations
from pytest_rlregress.agreement.computations import Hypothesis, Input, Row, Sampling

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

HALF_PRECISION = ("bfloat16", "float16")


def hypotheses(
    model: PreTrainedModel, rows: Sequence[Row], sampling: Sampling, bos_id: int | None, pad_id: int | None
) -> list[Hypothesis]:
    """List the hypotheses that can be tested here, in the order in which equally good ones are believed."""
    return [
        *_distributions(model, sampling),
        *_inputs(model, rows, bos_id, pad_id),
        *_outputs(rows),
        *_weights(model),
    ]


def _distributions(model: PreTrainedModel, sampling: Sampling) -> Iterator[Hypothesis]:
    temperature = sampling.temperature or 1.0
    if temperature != 1.0:
        yield Hypothesis(
            "before-temperature",
            "distribution",
            "at temperature 1",
            f"{{who}}'s log-probabilities are before temperature {temperature:g}",
            computations.at_temperature(1.0),
            ("logprobs_mode=processed_logprobs reports them after it", "divide the logits by the temperature"),
        )
        yield Hypothesis(
            "logprobs-divided",
            "distribution",
            f"with log-probabilities, not logits, divided by {temperature:g}",
            "{who} divides log-probabilities by the temperature",
            lambda logits, contexts: logits.log_softmax(-1) / temperature,
            ("divide the logits", "divide the logits"),
        )
    if replace(sampling, temperature=temperature) != Sampling(temperature):
        yield _truncated("truncated-support", sampling, "{who}'s log-probabilities are of what was left to draw from")
    defaults = _generation_config(model)
    if defaults not in (Sampling(), sampling):
        yield _truncated(
            "generation-config",
            defaults,
            "{who} drew by the model's generation_config.json, not by what is said here",
        )
    yield Hypothesis(
        "logits",
        "distribution",
        "with logits",
        "{who}'s numbers are logits, not log-probabilities",
        lambda logits, contexts: logits,
        ("logprobs_mode=processed_logprobs", "take log_softmax of the logits"),
    )


def _truncated(name: str, sampling: Sampling, cause: str) -> Hypothesis:
    changed = {key: value for key, value in asdict(sampling).items() if value != getattr(Sampling(), key)}
    return Hypothesis(
        name,
        "distribution",
        "with " + ", ".join(f"{key}={value:g}" for key, value in changed.items()),
        cause,
        computations.sampled_distribution(sampling),
        ("send top_p=1, top_k=0, min_p=0, repetition_penalty=1 with each request", "compute them of all tokens"),
    )


def _generation_config(model: PreTrainedModel) -> Sampling:
    config = getattr(model, "generation_config", None)
    given = config.to_diff_dict() if config is not None else {}
    known = {key: given[key] for key in asdict(Sampling()) if given.get(key) is not None}
    return Sampling(**known)


def other_temperature(model: PreTrainedModel, rows: Sequence[Row], sampling: Sampling) -> Hypothesis | None:
    """Find the temperature at which the model's log-probabilities are nearest to the reported; None for few tokens.

    Found on 64 tokens at most.
    """
    import torch

    logits: list[torch.Tensor] = []
    ids: list[int] = []
    reported: list[float] = []
    # Where one number is fitted, four tokens are what can refute it.
    for row in rows:
        room = 64 - len(reported)
        if room > 0:
            logits.append(computations.logits_of(model, computations.plain_input(row))[:-1][:room].double())
            ids += row.completion[:room]
            reported += row.reported[:room]
    if len(reported) < 4:
        return None
    every, token = torch.cat(logits), torch.tensor(ids)[:, None]
    wanted = torch.tensor(reported, dtype=torch.float64)
    usable = wanted.isfinite() & (wanted < 0)

    def distance(exponent: float) -> float:
        found = (every / math.exp(exponent)).log_softmax(-1).gather(-1, token.to(every.device))[:, 0].cpu()
        return float((found - wanted).abs()[usable].mean()) if usable.any() else math.inf

    best = math.exp(_smallest(distance, -3.0, 3.0))
    short = float(f"{best:.3g}")
    # The temperature that somebody wrote down, where it is as good as the fitted one.
    temperature = short if distance(math.log(short)) <= 2 * distance(math.log(best)) + 1e-6 else best
    if abs(temperature / (sampling.temperature or 1.0) - 1) < 1e-3:
        return None
    return Hypothesis(
        "other-temperature",
        "distribution",
        f"at temperature {temperature:.4g}",
        f"{{who}}'s log-probabilities are at temperature {temperature:.4g}, not {sampling.temperature:g}",
        computations.at_temperature(temperature),
        ("send the temperature with each request", "divide the logits by the temperature of the request"),
    )


def _smallest(function: Callable[[float], float], low: float, high: float) -> float:
    """Find where a function of one minimum is smallest: a grid, then golden sections."""
    grid = [low + (high - low) * step / 60 for step in range(61)]
    middle = min(grid, key=function)
    low, high = middle - grid[1] + grid[0], middle + grid[1] - grid[0]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(50):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return (low + high) / 2


def _inputs(
    model: PreTrainedModel, rows: Sequence[Row], bos_id: int | None, pad_id: int | None
) -> Iterator[Hypothesis]:
    width = max(len(row.prompt) for row in rows)
    if bos_id is not None:
        begins = [row.prompt[:1] == [bos_id] for row in rows]
        yield Hypothesis(
            "bos-added",
            "input",
            "behind two BOS" if all(begins) else "behind a BOS",
            "{who} put a BOS before ids " + ("that begin with one" if all(begins) else "that have none"),
            lambda row: Input([bos_id, *row.prompt, *row.completion], len(row.prompt) + 1),
            ("give it the ids, not the text", "take the ids that the engine was given"),
        )
        if all(begins) and all(len(row.prompt) > 1 for row in rows):
            yield Hypothesis(
                "bos-missing",
                "input",
                "without the BOS",
                "{who} left out the BOS that the ids begin with",
                lambda row: Input([*row.prompt[1:], *row.completion], len(row.prompt) - 1),
                ("give it the ids, not the text", "take the ids that the engine was given"),
            )
    if any(len(row.prompt) < width for row in rows):
        if computations.accepts(model, "position_ids"):
            yield Hypothesis(
                "padding-positions",
                "input",
                f"with positions counted from the left of {width} columns",
                "{who} counts padding as positions",
                lambda row: Input(
                    [*row.prompt, *row.completion],
                    len(row.prompt),
                    list(range(width - len(row.prompt), width + len(row.completion))),
                ),
                ("give it ids without padding", "count positions from the attention mask"),
            )
        blank = 0 if pad_id is None else pad_id
        yield Hypothesis(
            "padding-attended",
            "input",
            f"behind padding of id {blank} up to {width} tokens",
            "{who} attends to the padding",
            lambda row: Input([blank] * (width - len(row.prompt)) + [*row.prompt, *row.completion], width),
            ("give it ids without padding", "pass the attention mask"),
        )


def _outputs(rows: Sequence[Row]) -> Iterator[Hypothesis]:
    for name, undone, cause, change in (
        ("token-before", "each against the token before it", "one token late", computations.of_tokens_before),
        ("token-after", "each against the token after it", "one token early", computations.of_tokens_after),
    ):
        advice = "align them: logits at t are of token t + 1"
        yield Hypothesis(name, "output", undone, f"{{who}}'s log-probabilities are {cause}", change, (advice, advice))
    yield Hypothesis(
        "given-itself",
        "output",
        "with each token's own position",
        "{who} reads the logits of the position that a token stands on, not of the one before",
        computations.given_themselves,
        ("align them: logits at t are of token t + 1", "align them: logits at t are of token t + 1"),
    )
    reported = [number for row in rows for number in row.reported]
    missing = [number for number in reported if number >= 0 or not math.isfinite(number)]
    if missing:
        shown = " or ".join(sorted({f"{number:g}" for number in missing}))
        yield Hypothesis(
            "missing",
            "output",
            f"without the {len(missing)} of {len(reported)} that are {shown}",
            f"{{who}} has no log-probability of {len(missing)} of {len(reported)} tokens, {shown} stands in its place",
            _reported_where(lambda number, own: number >= 0 or not math.isfinite(number)),
            ("keep the tokens that have none out of the loss", "keep the tokens that have none out of the loss"),
        )
    # Eight numbers that bfloat16 holds exactly are no chance: of float32 numbers one in 65536 is such a one.
    if len(reported) >= 8 and all(number == _bfloat16(number) for number in reported):
        yield Hypothesis(
            "stored-in-bfloat16",
            "output",
            "rounded to bfloat16",
            "{who}'s log-probabilities were stored in bfloat16",
            _reported_where(lambda number, own: abs(number - own) <= abs(own) * 2**-8),
            ("keep them in float32", "keep them in float32"),
        )


def _reported_where(fits: Callable[[float, float], bool]) -> Callable[[torch.Tensor, Row], torch.Tensor]:
    """Return the model's own numbers, and the reported one where that and the own one fit."""

    def change(scores: torch.Tensor, row: Row) -> torch.Tensor:
        own = computations.of_tokens(scores, row)
        pairs = zip(row.reported, own.tolist(), strict=True)
        return own.double().new_tensor([number if fits(number, x) else x for number, x in pairs])

    return change


def _bfloat16(number: float) -> float:
    import torch

    return float(torch.tensor(number, dtype=torch.float64).to(torch.bfloat16))


def _weights(model: PreTrainedModel) -> Iterator[Hypothesis]:
    import torch

    if any(parameter.dtype is torch.float32 for parameter in model.parameters()):
        for name in HALF_PRECISION:
            yield Hypothesis(
                name,
                "weights",
                f"with weights rounded to {name}",
                f"{{who}} computes in {name}, the model here in float32",
                functools.partial(computations.rounded, dtype=getattr(torch, name)),
                ("compare in one dtype", "compare in one dtype"),
            )
