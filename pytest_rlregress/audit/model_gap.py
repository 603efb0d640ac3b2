"""How far a batch's log-probabilities are from those of a model, and why."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress.audit.batch import BatchError, TokenRows, name_of
from pytest_rlregress.audit.findings import SHOWN, Finding, Place
from pytest_rlregress.audit.whole import Audit
from pytest_rlregress.util.coverage import Unchecked

_COLUMNS = ("old_log_probs", "rollout_log_probs")


@dataclass(frozen=True)
class SampledRow:
    """A row without its padding.

    Attributes:
        row: In the batch.
        ids: Prompt and response.
        start: Where in ``ids`` the first trained token is.
        trained: Of each of ``ids`` from ``start`` on, whether it is trained on.
        tokens: The same tokens' places in the columns of the response.
        reported: For each column of log-probabilities their numbers.
    """

    row: int
    ids: list[int]
    start: int
    trained: list[bool]
    tokens: list[int]
    reported: dict[str, list[float]]


def end_tokens(directory: Path) -> list[int]:
    """Return the end tokens that a model directory names; none where it does not say."""
    for name in ("generation_config.json", "config.json"):
        try:
            said = json.loads((directory / name).read_text()).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        found = [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, int)]
        if found:
            return found
    return []


def add(audit: Audit, rows: Sequence[SampledRow], directory: Path, temperature: float) -> None:
    """Add the gap of each column of log-probabilities to an audit, as a finding where it is more than rounding.

    Args:
        audit: Is added to.
        rows: Those that are looked at.
        directory: Of the model, as transformers loads it; nothing is downloaded, and no code or pickle in it is run.
        temperature: That the responses were sampled at.

    Raises:
        BatchError: The directory has no model, or one that does not fit the batch.
    """
    columns = [name for name in _COLUMNS if rows and name in rows[0].reported]
    whole = [row for row in rows if all(row.trained)]
    if not columns or not whole:
        no_columns = "there are no log-probabilities of tokens that are trained on"
        not_whole = f"each of {len(rows)} rows has tokens in its response that are not trained on"
        audit.unchecked["gap"] = Unchecked(not_whole if columns else no_columns)
        return
    model = _load(directory, rows, name_of(audit.names, "input_ids", "responses"))
    compared = [_compare(audit.names[name], name, whole, model, temperature) for name in columns]
    audit.found["gap"] = [finding for findings, _ in compared for finding in findings]
    audit.notes += [note for _, note in compared]


def _compare(
    column: str, name: str, rows: Sequence[SampledRow], model: Any, temperature: float
) -> tuple[list[Finding], str]:
    """Return the finding about one column, none where it agrees, and a note."""
    from pytest_rlregress.agreement.causes import explain
    from pytest_rlregress.agreement.computations import Sampling
    from pytest_rlregress.agreement.logprobs import token_logprobs

    explanation = explain(
        [row.reported[name] for row in rows],
        model,
        [row.ids[: row.start] for row in rows],
        [row.ids[row.start :] for row in rows],
        sampling=Sampling(temperature),
    )
    note = f"{column} and the model, {len(rows)} rows: {explanation}"
    if explanation.agrees:
        return [], note
    places = []
    for row, line in zip(rows, token_logprobs(model, [row.ids for row in rows], temperature), strict=True):
        own = line[row.start - 1 :]
        gaps = [abs(a - b) for a, b in zip(row.reported[name], own, strict=True)]
        worst = max(range(len(gaps)), key=lambda at: gaps[at] if gaps[at] == gaps[at] else float("inf"))
        mean = sum(gaps) / len(gaps)
        text = f"{row.reported[name][worst]:.4g}, and {own[worst]:.4g} by the model; {mean:.3g} nats a token in the row"
        places.append((mean, Place(row.row, row.tokens[worst], text)))
    places.sort(key=lambda pair: -pair[0] if pair[0] == pair[0] else float("-inf"))
    causes = explanation.causes or explanation.nearest
    instead = "; ".join(cause.remedy for cause in causes) or (
        "see that the directory has the weights that sampled this batch, and that ids and masks have no finding"
    )
    shown = tuple(place for _, place in places[:SHOWN])
    return [
        Finding("gap", column, f"is not what the model computes: {explanation}", instead, len(rows), 0, shown)
    ], note


def sampled_rows(piece: TokenRows, wanted: Collection[int]) -> list[SampledRow]:
    """Return the wanted rows of a piece of a batch that have a prompt and tokens to train on."""
    found: list[SampledRow] = []
    if piece.ids is None or piece.attention is None:
        return found
    skipped = piece.ids.shape[1] - piece.mask.shape[1]
    for row in range(len(piece.mask)):
        at = piece.attention[row].nonzero()[:, 0]
        trained = piece.mask[row].nonzero()[:, 0]
        if piece.start + row not in wanted or not len(trained):
            continue
        first = int(trained[0]) + skipped
        prompt = int((at < first).sum())
        tokens = (at[at >= first] - skipped).tolist()
        if prompt and tokens:
            reported = {name: values[row, tokens].tolist() for name, values in piece.log_probs().items()}
            flags = piece.mask[row, tokens].tolist()
            found.append(SampledRow(piece.start + row, piece.ids[row, at].tolist(), prompt, flags, tokens, reported))
    return found


def _load(directory: Path, rows: Sequence[SampledRow], column: str) -> Any:
    """Return the model, in float32, after a look at its vocabulary; ``column`` is the batch's name of its ids."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise BatchError(f"--model takes transformers, which is not installed here ({error})") from error
    if not directory.joinpath("config.json").is_file():
        raise BatchError(
            f"--model {directory}: that isn't a model directory: it has no config.json. It is one as save_pretrained "
            "writes it, with the weights as safetensors"
        )
    try:
        # Without trust_remote_code=False transformers asks on standard input whether to run the folder's own code.
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        vocabulary = config.get_text_config().vocab_size
        worst = max(rows, key=lambda row: max(row.ids))
        if max(worst.ids) >= vocabulary:
            raise BatchError(
                f"--model {directory}: its vocabulary has {vocabulary:,} ids, and {column} has the id {max(worst.ids)} "
                f"in row {worst.row}: it is not the model that sampled this batch"
            )
        model = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        raise BatchError(f"--model {directory}: transformers cannot load it: {error}") from error
    return model.float().eval()
