"""Read records, and find the tests that went from good to bad between two of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pytest_rlregress.records import journal
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.verdicts import Rank, Verdict, rank

#: How a run ended: it may still be going on, as far as can be told.
State = Literal["complete", "interrupted", "killed", "running"]

#: Version of what a record holds beside the Common Test Report Format: docs/record.md, schema.json.
FORMAT = 1
#: What a record of that format holds, as a JSON Schema that describes each key.
SCHEMA = Path(__file__).with_name("schema.json")


class RecordError(ValueError):
    """A file that cannot be read as a record: the message names it and says why."""


@dataclass(frozen=True)
class Flip:
    """A test that was good in one run and bad in a later one.

    Attributes:
        test: Its key: ``keys.key``.
        failure: Id of the documented failure whose side it is, or None.
        before: Its word in the good run.
        after: The same in the bad run.
    """

    test: str
    failure: str | None
    before: str
    after: str


def flipped(good: Path, bad: Path) -> list[Flip]:
    """Find the tests that are in both records and went from good to bad, in the order of the later run.

    Raises:
        RecordError: One of them is none, as for ``whole``.
    """
    before, after = ({test["name"]: test for test in read(path)["tests"]} for path in (good, bad))
    return [
        Flip(name, test.get("extra", {}).get("failure"), word(before[name]), word(test))
        for name, test in after.items()
        if name in before and rank(word(before[name])) is Rank.GOOD and rank(word(test)) > Rank.GOOD
    ]


def read(path: Path) -> dict[str, Any]:
    """Read the ``results`` of a record.

    Raises:
        RecordError: As for ``whole``.
    """
    results: dict[str, Any] = whole(path)["results"]
    return results


def lock(path: Path) -> Lock:
    """Read the lock of a record: what was installed where it was made.

    Raises:
        RecordError: As for ``whole``.
        LockError: What it names is no complete set of packages.
    """
    return locks.of_lines(enumerate(read(path)["extra"]["stack"]["requirements"], 1), str(path), path.parent)


def whole(path: Path) -> dict[str, Any]:
    """Read a record, or build it from the journal of a run that was killed or still goes on.

    Keys that came with later releases of the same format may be missing: all of ``results.extra`` but its ``format``
    and ``stack.requirements``.

    Raises:
        RecordError: The file cannot be read, is empty, cut off, damaged, of something else or of a newer format, or
            does not say what was installed.
    """
    kept = path.name.endswith(journal.SUFFIX)
    running = False
    try:
        if kept:
            lines, running = journal.read(path)
        else:
            content = path.read_bytes()
            lines = [json.loads(content)] if content.strip() else []
    except IsADirectoryError:
        raise RecordError(f"{path}: a folder, not a record: name a file in it") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: no complete JSON, so no record, or one that was cut off: {error}") from None
    if not lines:
        raise RecordError(f"{path}: empty, so no record")
    record = lines[0]
    _recognise(path, record)
    try:
        if kept:
            record = journal.assembled(lines, "running" if running else "killed")
        _use(record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RecordError(f"{path}: damaged: not what records/schema.json asks for ({error!r})") from None
    if not record["results"]["extra"].get("stack", {}).get("requirements"):
        raise RecordError(f"{path}: does not say what was installed: results.extra.stack.requirements is missing")
    return dict(record)


def word(test: Mapping[str, Any]) -> str:
    """Return the result of a recorded test: ``word_of`` its status and verdict."""
    return word_of(str(test.get("rawStatus", test["status"])), test.get("extra", {}).get("verdict"))


def word_of(status: str, verdict: str | None) -> str:
    """Return the result of a test: its verdict, or pytest's word.

    That is pytest's where there is no verdict, where one that does not fail the run was followed by an error in
    teardown, and where a guard was unavailable though the run was promised it.
    """
    if verdict is None or (status == "error" and rank(verdict) is not Rank.FAILING):
        return status
    return status if verdict == Verdict.UNAVAILABLE and status == "failed" else str(verdict)


def state(results: Mapping[str, Any]) -> State:
    """Return how a run ended."""
    extra = results["extra"]
    return cast(State, extra.get("state") or ("interrupted" if extra.get("interrupted") else "complete"))


def _recognise(path: Path, record: Any) -> None:
    """Refuse what is no record, or one of a newer format."""
    try:
        written = record["results"]["extra"]["format"]
        newer = written > FORMAT
    except (KeyError, TypeError):
        foreign = isinstance(record, dict) and record.get("reportFormat") == "CTRF"
        but = " but another tool's test report" if foreign else ""
        raise RecordError(
            f"{path}: no record of a run with pytest-rlregress{but}: pytest --hw=PROFILE --rl-record-dir=DIR writes one"
        ) from None
    if newer:
        raise RecordError(f"{path}: format {written}, known here up to {FORMAT}: pip install -U pytest-rlregress")


def _use(record: Mapping[str, Any]) -> None:
    """Access every key that readers rely on, so that a damaged record fails here."""
    results = record["results"]
    for moment in ("start", "stop"):
        _ = results["summary"][moment] + 0
    for test in results["tests"]:
        _ = word(test), test["name"].partition("::"), test["duration"] + 0
    _ = record["reportId"].upper(), results["extra"].get("stack", {}).get("requirements")
