"""One file of a history as what the index keeps of it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, get_args

from packaging.utils import canonicalize_name

from pytest_rlregress.records import reader
from pytest_rlregress.records.journal import SUFFIX
from pytest_rlregress.records.reader import State
from pytest_rlregress.report.history import step_numbers
from pytest_rlregress.report.judgement.facts import RecordedRun
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.verdicts import rank

#: A note is one line; the whole text stays in the record.
NOTE_CHARACTERS = 300
_YEAR_9999 = 253_370_764_800

#: Name, word, seconds, failure, side, note, flaky: see ``facts.Result``.
Outcome: TypeAlias = tuple[str, str, float, str | None, str | None, str, bool]


@dataclass(frozen=True)
class Parsed:
    """What a file says of its run.

    Attributes:
        head: In values of JSON: what ``run`` needs beside the stack.
        stack: ``results.extra.stack``, which is the same from night to night.
        results: What came of each test, each once.
    """

    head: Mapping[str, Any]
    stack: Mapping[str, Any]
    results: Sequence[Outcome]


def parse(path: Path) -> Parsed:
    """Read a record, or the journal of a run.

    Raises:
        RecordError: It is none, or not whole; the message names the file.
    """
    try:
        parsed = _parsed(reader.whole(path), path)
        run(path, parsed.head, parsed.stack)  # whatever does not fit is found here, not later
    except reader.RecordError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise reader.RecordError(f"{path}: no record of a run: {type(error).__name__}: {error}") from None
    return parsed


def digest(path: Path) -> str:
    """A text that is the same for files with the same content, read as the same kind of file.

    Raises:
        OSError: The file cannot be read.
    """
    return f"{'journal' if is_journal(path) else 'record'} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def run(path: Path, head: Mapping[str, Any], stack: Mapping[str, Any]) -> RecordedRun:
    """The run that a parsed file is about."""
    extra = {**head["extra"], "stack": stack}
    hardware, git, how = (extra.get(name) or {} for name in ("hardware", "git", "run"))
    return RecordedRun(
        id=head["id"],
        path=path,
        start=head["start"],
        seconds=head["seconds"],
        platform=str(hardware.get("profile") or "unknown"),
        state=head["state"],
        devices=tuple(str(device["name"]) for device in hardware.get("devices") or ()),
        driver=_text(hardware.get("driver")),
        commit=_text(git.get("commit")),
        dirty=bool(git.get("dirty")),
        lock=_lock(tuple(stack["requirements"])),
        components=dict(stack.get("versions") or {}),
        selection=tuple(map(str, how.get("arguments") or ())),
        counts=head["counts"],
        numbers=head["numbers"],
        extra=extra,
    )


def printable(value: object) -> str:
    """A text that can be stored and printed: what a test printed may hold halves of characters."""
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_journal(path: Path) -> bool:
    """Whether a file's name says that it is the journal of a run that has not ended, or was killed."""
    return path.name.endswith(SUFFIX)


def worst(tests: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """A record's tests by name; the worst of those that have the same."""
    found: dict[str, Mapping[str, Any]] = {}
    for test in tests:
        name = printable(test["name"])
        if name not in found or rank(reader.word(test)) > rank(reader.word(found[name])):
            found[name] = test
    return found


def _parsed(whole: Mapping[str, Any], path: Path) -> Parsed:
    found = whole["results"]
    tests, extra = found["tests"], dict(found["extra"])
    start, stop = (_seconds(found["summary"].get(name), path, name) for name in ("start", "stop"))
    state = reader.state(found)
    if state not in get_args(State):
        raise ValueError(f"its state is {state!r}, none of {', '.join(get_args(State))}")
    results = [_outcome(name, test) for name, test in worst(tests).items()]
    counts = Counter(word for _, word, *_ in results)
    remarks = []
    if stop < start:
        remarks.append(f"its clock went backwards: it ended {start - stop:g} s before it began")
    if len(results) < len(tests):
        remarks.append(
            f"{len(tests) - len(results)} of its {len(tests)} tests have the name of another: the worst counts"
        )
    if is_journal(path):
        ran = len(results) - counts["pending"] - counts["interrupted"]
        how = "still goes on, as far as can be told" if state == "running" else "was killed"
        remarks.append(f"its run {how}: {ran} of {len(results)} tests have a result")
    stack = extra.pop("stack")
    head = {
        "id": whole["reportId"],
        "start": start,
        "stop": stop,
        "seconds": stop - start if stop >= start else None,
        "state": state,
        "counts": counts,
        "numbers": step_numbers.read_numbers(tests),
        "remarks": remarks,
        "extra": extra,
    }
    return Parsed(head, stack, results)


def _outcome(name: str, test: Mapping[str, Any]) -> Outcome:
    extra = test.get("extra") or {}
    seconds = float(test["duration"]) / 1000
    note = str(extra.get("note") or test.get("message") or "")
    if note:
        note = note.strip().partition("\n")[0]
        note = note if len(note) <= NOTE_CHARACTERS else f"{note[: NOTE_CHARACTERS - 1]}…"
    return (
        name,
        reader.word(test),
        seconds if math.isfinite(seconds) else 0.0,
        _text(extra.get("failure")),
        _text(extra.get("side")),
        note,
        bool(test.get("flaky")),
    )


def _seconds(milliseconds: object, path: Path, name: str) -> float:
    if isinstance(milliseconds, (int, float)) and 0 <= milliseconds / 1000 < _YEAR_9999:
        return milliseconds / 1000
    moment = {"start": "began", "stop": "ended"}[name]
    raise reader.RecordError(f"{path}: does not say when its run {moment}: results.summary.{name} is {milliseconds!r}")


@lru_cache(maxsize=1024)
def _lock(requirements: tuple[str, ...]) -> Lock:
    """What was installed; a package from a folder, which may be another machine's, goes by the folder's name."""
    return Lock({_name(line): line for line in requirements})


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _name(line: str) -> str:
    if line.startswith("-e "):
        return canonicalize_name(Path(line[3:]).name)
    return canonicalize_name(line.partition(" @ ")[0].partition("==")[0])
