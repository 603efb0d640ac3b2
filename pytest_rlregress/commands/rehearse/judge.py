"""Judge what a rehearsal wrote down: a row for each check, with findings and what wasn't checked; pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_rlregress.commands.rehearse import as_is_unseen, judge_reward, measures
from pytest_rlregress.commands.rehearse.record import RehearsalRecord, from_plain
from pytest_rlregress.commands.rehearse.rows import FINDING, OK, STUBBED, UNCHECKED, CheckRow
from pytest_rlregress.fixtures.step_record import find_complaints
from pytest_rlregress.util.coverage import Coverage, Result, Unchecked

#: In float32, in nats; the loss may be ten times as far from the closed form.
TOLERANCE = 1e-5
#: Without these nothing is known of a run, whatever else holds.
CORE = ("trained tokens", "advantages", "gradient", "update")
#: These as well where vLLM generates.
CORE_OF_ENGINE = ("sync", "agreement")
#: And this in a real run, where the engine's weights aren't read.
CORE_OF_REAL_ENGINE = ("agreement",)
UPDATES = 2
#: How torch and Triton say that there is no GPU: TRL 1.15 calls a Triton kernel on a CPU too.
_WANTS_GPU = re.compile(r"\b0 active drivers|no NVIDIA driver|No CUDA GPUs are available|not compiled with CUDA")


@dataclass(frozen=True)
class Judged:
    """All that is said of a rehearsal.

    Attributes:
        rows: A row for each check.
        records: Of its steps.
        unrehearsed: What the user's run has and the rehearsal doesn't, with the reason.
        changes: Events of values that were changed.
        broken: Errors of the rehearsal itself.
        as_is: Whether it is a real run, in which nothing was made small.
        cost: The share of a real run's steps that watching took.
    """

    rows: tuple[CheckRow, ...]
    records: tuple[RehearsalRecord, ...]
    unrehearsed: tuple[tuple[str, str], ...]
    changes: tuple[Mapping[str, Any], ...]
    broken: tuple[str, ...]
    as_is: bool = False
    cost: float | None = None

    @property
    def findings(self) -> tuple[CheckRow, ...]:
        """The rows of what is wrong."""
        return tuple(row for row in self.rows if row.status == FINDING)

    @property
    def coverage(self) -> Coverage:
        """What was checked; a check without which nothing is known names itself as missing."""
        unchecked = tuple(
            (row.check, Unchecked(row.why, (row.check,) if row.limit == "needed" else ()))
            for row in self.rows
            if row.status == UNCHECKED
        )
        return Coverage(tuple(row.check for row in self.rows if row.status in (OK, STUBBED)), unchecked)

    @property
    def result(self) -> Result:
        """What the rehearsal comes to."""
        return self.coverage.judge(self.findings)


def judge(events: Sequence[Mapping[str, Any]]) -> Judged:
    """Judge the events of a rehearsal."""
    records = tuple(from_plain(one["record"]) for one in events if one["kind"] == "step")
    real = next((one for one in events if one["kind"] == "as_is"), None)
    needed = find_needed(records, real)
    of_run = [row for event in events for row in _judge_event(event, events)]
    of_steps = [_judge_property(name, records, needed) for name in RehearsalRecord.properties] if records else []
    updates = [record for record in records if (record.grad_norm or 0) > 0 and record.learning_rate]
    steps = CheckRow("updates", str(len(updates)), f"≥ {UPDATES}", OK)
    if len(updates) < UPDATES:
        why = f"{len(records)} steps were recorded"
        if real and len(records) >= UPDATES:
            why += ", of which the others have no gradient or a learning rate of 0; more --steps may have both"
        steps = CheckRow("updates", str(len(updates)), "needed", UNCHECKED, why)
    if real:
        of_run += [CheckRow(name, "", "", UNCHECKED, why) for name, why in as_is_unseen.OF_RUN.items()]
    unrehearsed = {event["what"]: event["why"] for event in events if event["kind"] == "unrehearsed"}
    changes = {event["key"]: event for event in events if event["kind"] == "change"}
    broken = [event["trace"].strip().rpartition("\n")[2] for event in events if event["kind"] == "observer"]
    return Judged(
        (steps, *of_run, *of_steps),
        records,
        tuple(unrehearsed.items()),
        tuple(changes.values()),
        tuple(dict.fromkeys(broken)),
        real is not None,
        _find_cost(events),
    )


def find_needed(records: Sequence[RehearsalRecord], real: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the checks without which nothing is known; ``real`` is the event of a real run."""
    if real:
        return (*CORE, *(CORE_OF_REAL_ENGINE if real["uses_engine"] else ()))
    uses_engine = any(record.engine_prompts is not None for record in records)
    return (*CORE, *(CORE_OF_ENGINE if uses_engine else ()))


def _find_cost(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the recorder's seconds as a share of the steps' without them."""
    costs = [one for one in events if one["kind"] == "cost"]
    seconds = sum(one["seconds"] for one in costs)
    return sum(one["watching"] for one in costs) / seconds if seconds else None


def _judge_property(name: str, records: Sequence[RehearsalRecord], needed: Sequence[str]) -> CheckRow:
    """Judge one property of every step."""
    value, limit = measures.describe(name, records)
    for record in records:
        for found, complaint in find_complaints(record, TOLERANCE):
            if found == name:
                return CheckRow(name, value, limit, FINDING, f"step {record.number}: {complaint}")
    seen = [record for record in records if name not in record.not_seen]
    if not seen:
        return CheckRow(name, "", "needed" if name in needed else "", UNCHECKED, records[-1].not_seen[name])
    stubbed = [record.number for record in records if record.stubbed]
    if name == "spread of rewards" and stubbed:
        steps = ", ".join(map(str, stubbed))
        return CheckRow(
            name, value, limit, STUBBED, f"all rewards of a group were equal in step {steps}: 0 and 1 stood in"
        )
    return CheckRow(name, value, limit, OK)


def _judge_event(event: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Iterator[CheckRow]:
    kind = event["kind"]
    if kind == "refused":
        yield CheckRow(
            "configuration", "", "", FINDING, f"{event.get('by', 'TRL')} refuses it as it is written: {event['text']}"
        )
    elif kind == "failed" and not event["ours"]:
        yield _judge_failed(event)
    elif kind == "prompts":
        yield from _judge_prompts(event, events)
    elif kind == "reward":
        yield judge_reward.judge(event)
    elif kind == "saved":
        yield _judge_saved(event)
    elif kind == "resumed":
        yield _judge_resumed(event)


def _judge_failed(event: Mapping[str, Any]) -> CheckRow:
    """Judge a run that ended with an error while it trained; what only a GPU can do says nothing of the run."""
    place = event["places"][-1] if event["places"] else "its trainer"
    why = f"it ends {event['when']}, at {place}: {event['text']}"
    if _WANTS_GPU.search(event["text"]):
        return CheckRow("training", event["when"], "needed", UNCHECKED, f"it takes a GPU, which isn't here: {why}")
    return CheckRow("training", event["when"], "to its end", FINDING, why)


def _judge_prompts(event: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Iterator[CheckRow]:
    if not event["rows"]:
        yield CheckRow("prompt lengths", "", "", UNCHECKED, event["why"])
        return
    no_template = next((one["why"] for one in events if one["kind"] == "no_template"), "")
    if no_template:
        for check in ("prompt lengths", "answer's turn", "BOS"):
            yield CheckRow(check, "", "needed", UNCHECKED, no_template)
        return
    written = {one["key"]: one["old"] for one in events if one["kind"] == "change"}
    looked, rows, longest = len(event["lengths"]), event["rows"], event["longest"]
    room, completion = written.get("vllm_max_model_length"), written.get("max_completion_length")
    value = f"{looked:,} of {rows:,} rows, at most {longest} tokens"
    status, why = OK, ""
    if room and completion:
        cut = [row for row, length in enumerate(event["lengths"]) if length + completion > room]
        refused = [row for row, length in enumerate(event["lengths"]) if length >= room]
        if refused:
            why = f"{len(refused)} prompts are as long as vllm_max_model_length {room}, the first is row {refused[0]}"
        elif cut:
            why = (
                f"{len(cut)} prompts leave less than max_completion_length {completion} of vllm_max_model_length "
                f"{room}, the first is row {cut[0]}"
            )
        status = FINDING if why else OK
    limit = event.get("limit")
    if limit and limit["tokens"]:
        room = limit["tokens"] + 1
        longer = [row for row, length in enumerate(event["lengths"]) if length > limit["tokens"]]
        if longer:
            value += f", {len(longer)} too long"
        if longer and limit["comes"]:
            status = FINDING
            why = (
                f"{len(longer)} prompts are longer than {limit['key']} {limit['tokens']}, the first is row {longer[0]}"
            )
            why += f": {limit['comes']}"
    yield CheckRow("prompt lengths", value, f"< {room}" if room else "", status, why)
    status, why = OK, ""
    if event["opened"] is False:
        status, why = FINDING, f"no prompt opens the answer's turn: they end with {event['end']!r}"
    elif event["opened"] is None:
        status, why = UNCHECKED, "the prompts are text that no chat template made"
    yield CheckRow("answer's turn", f"ends with {event['end'][-24:]!r}", "opened", status, why)
    why = "" if event["bos"] < 2 else f"each prompt begins with {event['bos']} BOS tokens: the text has one already"
    yield CheckRow("BOS", str(event["bos"]), "≤ 1", FINDING if why else OK, why)


def _judge_saved(event: Mapping[str, Any]) -> CheckRow:
    check, folder = event["what"], event["folder"]
    if folder is None:
        return CheckRow(check, "", "", UNCHECKED, event["why"])
    value = f"{folder}, {event['compared']} tensors"
    for name, said in (("differ", "aren't the trained ones"), ("missing", "aren't in it")):
        if event[name]:
            why = f"{len(event[name])} tensors of {folder} {said}, the first is {event[name][0]}"
            return CheckRow(check, value, "all equal", FINDING, why)
    if not event["compared"]:
        return CheckRow(check, value, "all equal", FINDING, f"{folder} has none of the trained tensors")
    return CheckRow(check, value, "all equal", OK)


def _judge_resumed(event: Mapping[str, Any]) -> CheckRow:
    value = f"{event['steps']} step, {event['compared']} tensors"
    if not event["steps"]:
        return CheckRow("resume", value, "1 step", FINDING, "from its checkpoint the run goes on for no step")
    if event["differ"]:
        why = f"{len(event['differ'])} tensors aren't the checkpoint's, the first is {event['differ'][0]}"
        return CheckRow("resume", value, "all equal", FINDING, why)
    if not event["moments"]:
        return CheckRow("resume", value, "all equal", FINDING, "the optimizer goes on without its moments")
    return CheckRow("resume", value, "all equal", OK)
