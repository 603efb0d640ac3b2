"""``rlregress audit``: what is wrong with a batch that a trainer dumped, before or after it was trained on."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pytest_rlregress.audit import files, model_gap
from pytest_rlregress.audit.batch import BatchError
from pytest_rlregress.audit.whole import CHECKS, MODEL_CHECK, Audit
from pytest_rlregress.util import arguments
from pytest_rlregress.util.coverage import Coverage
from pytest_rlregress.util.text import plural, wrapped

_DESCRIPTION = (
    "Check a batch that a trainer dumped: masks, log-probabilities, rewards, groups, positions. It may be "
    f"{files.FORMATS}. A pickle is read, and never executed."
)
_EXIT = (
    "The exit code is 1 if there is a finding, 0 if there is none, 3 if there is none and something is missing without "
    "which not all could be checked (the last line names it), 2 for bad input."
)
_EPILOG = """\
the checks, by the names that findings and --skip have:
{checks}

dump a batch, then ask:
  verl       batch.save_to_disk("batch.pkl")
  TRL        torch.save(inputs, "batch.pt")         # what GRPOTrainer hands to compute_loss
  OpenRLHF   torch.save(vars(experience), "batch.pt")
  any        safetensors.torch.save_file({{"response_mask": mask, ...}}, "batch.safetensors")

  rlregress audit batch.pkl --eos 151645 --model Qwen2.5-0.5B-Instruct/

docs/audit.md explains each check. In a training loop: pytest_rlregress.audit.audit_batch(batch.batch)
"""


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "audit",
        formatter_class=arguments.ManualFormatter,
        description=f"{_DESCRIPTION}\n\n{_EXIT}",
        epilog=_EPILOG.format(
            checks="\n".join(f"  {name:13}  {what}" for name, what in (CHECKS | MODEL_CHECK).items())
        ),
    )
    parser.add_argument("batch", type=arguments.path, metavar="BATCH", help="the file")
    parser.add_argument(
        "--map", action="append", default=[], type=_pair, metavar="NAME=COLUMN",
        help="a column whose name is none of verl's, TRL's and OpenRLHF's: response_mask=my_mask",
    )  # fmt: skip
    parser.add_argument(
        "--eos", action="append", default=[], type=_id, metavar="ID", help="id of an end token, once for each"
    )
    parser.add_argument(
        "--model",
        type=arguments.path,
        metavar="DIR",
        help="also how far the log-probabilities are from this model's, and why",
    )
    parser.add_argument(
        "--model-rows",
        type=arguments.count,
        default=16,
        metavar="N",
        help="so many rows of the whole batch go through the model (default 16)",
    )
    parser.add_argument(
        "--temperature",
        type=arguments.positive,
        metavar="T",
        help="for --model: the temperature that the rollout sampled with; default: the one in verl's meta_info, else 1",
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        choices=[*CHECKS, *MODEL_CHECK],
        metavar="CHECK",
        help="leave a check out",
    )
    parser.add_argument("--json", action="store_true", help="as a JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the batch, check it and print what was found; returns the exit code."""
    try:
        audit, form = _audit(options)
    except BatchError as error:
        for line in wrapped(f"rlregress audit: {options.batch}: {error}."):
            print(line, file=sys.stderr)
        return 2
    print((_as_json if options.json else _as_text)(str(options.batch), form, audit))
    return _coverage(audit).judge(audit.findings).exit_code


def _coverage(audit: Audit) -> Coverage:
    return Coverage.of(audit.found, audit.unchecked)


def _audit(options: argparse.Namespace) -> tuple[Audit, str]:
    """Return what the checks found, and which program wrote the batch."""
    batch, model = files.open_batch(options.batch), options.model
    if model and not os.path.isdir(model):
        raise BatchError(f"--model {model} isn't a folder here")
    said = batch.meta.get("eos_token_id")  # as verl's meta_info does
    ends = [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, int)]
    ends = options.eos or ends or (model_gap.end_tokens(model) if model else [])
    audit = Audit(batch.columns, dict(options.map), ends, set(options.skip) & CHECKS.keys())
    kept: list[model_gap.SampledRow] = []
    through_model = min(options.model_rows, audit.rows)
    wanted = {number * audit.rows // through_model for number in range(through_model)}
    with _one_thread():
        for piece in batch.pieces(audit.names):
            tokens = audit.add(piece)
            if model and tokens:
                kept += model_gap.sampled_rows(tokens, wanted)
    audit.finish()
    if model and "gap" not in options.skip:
        said = batch.meta.get("temperature")
        temperature = options.temperature or (said if isinstance(said, int | float) and said > 0 else 1.0)
        model_gap.add(audit, kept, model, temperature)
    return audit, batch.form


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread, if the batch has tensors: on small pieces more wait for each other."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _pair(text: str) -> tuple[str, str]:
    name, equals, column = text.partition("=")
    if not (name and equals and column):
        raise argparse.ArgumentTypeError(f"{arguments.shorten(text)} is not NAME=COLUMN, such as response_mask=my_mask")
    return name, column


def _id(text: str) -> int:
    if not arguments.is_number(text):
        raise argparse.ArgumentTypeError(f"{arguments.shorten(text)} isn't a token id; an id is a number from 0 on")
    return int(text)


def _as_json(file: str, form: str, audit: Audit) -> str:
    """Write one JSON object; rows and tokens are from 0."""
    return json.dumps(
        {
            "file": file,
            "form": form,
            "rows": audit.rows,
            "trained_tokens": audit.tokens,
            "findings": [asdict(one) for one in audit.findings],
            "notes": audit.notes,
            "result": _coverage(audit).judge(audit.findings).word,
            "checked": list(audit.found),
            "not_checked": [{"check": check, "why": one.why} for check, one in audit.unchecked.items()],
            "missing": list(_coverage(audit).missing),
        },
        indent=2,
        ensure_ascii=False,
    )


def _as_text(file: str, form: str, audit: Audit) -> str:
    """Write the findings, then what the batch is, what was measured, what was checked and what was not."""
    lines = []
    for one in audit.findings:
        every = "every row" if one.rows == audit.rows else plural(one.rows, "row")
        extent = f"{plural(one.tokens, 'token')} in {every}" if one.tokens else every
        lines += [f"{one.check}: {one.column}, {extent}", *wrapped(one.what, "  ", "  ")]
        for place in one.places:
            token = "" if place.token is None else f", token {place.token}"
            lines += wrapped(f"row {place.row}{token}{f': {place.text}' if place.text else ''}", "    ", "      ")
        if one.rows > len(one.places):
            lines.append(f"    and {one.rows - len(one.places):,} more")
        lines += [*wrapped(f"instead: {one.instead}", "  ", "    "), ""]
    coverage = _coverage(audit)
    found = plural(len(audit.findings), "finding") if audit.findings else ""
    headline = coverage.headline(found, f"nothing found{' in texts and rewards' if audit.is_log_of_texts else ''}")
    tokens = f", {audit.tokens:,} trained tokens" if audit.tokens else ""
    lines += wrapped(f"{file} ({form}), {audit.rows:,} rows{tokens}: {headline}", rest="  ")
    for note in audit.notes:
        lines += wrapped(note, rest="  ")
    return "\n".join([*lines, *coverage.lines()])
