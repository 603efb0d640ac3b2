"""Records of runs, read again: which tests went from good to bad between two of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress.verdict import FAILING

#: Version of what a record holds beside the Common Test Report Format: docs/record.md.
FORMAT = 1

GOOD = frozenset({"passed", "held", "absent"})
BAD = FAILING | {"reproduced", "failed", "error"}


class RecordError(ValueError):
    """A file that cannot be read as a record: the message names it and says why."""


@dataclass(frozen=True)
class Flip:
    """A test that was good in one run and bad in a later one.

    Attributes:
        test: Its key: ``keys.key``.
        failure: Id of the documented failure whose side it is, or None.
        before: Its verdict in the good run; for a test without side, pytest's word.
        after: The same in the bad run.
    """

    test: str
    failure: str | None
    before: str
    after: str


def flipped(good: Path, bad: Path) -> list[Flip]:
    """The tests that are in both records and went from good to bad, in the order of the later run.

    Raises:
        RecordError: One of them is cut off, not a record, of a newer format, or does not say what was installed.
    """
    before, after = (_tests(read(path)) for path in (good, bad))
    return [
        Flip(name, test.get("extra", {}).get("failure"), _word(before[name]), _word(test))
        for name, test in after.items()
        if name in before and _word(before[name]) in GOOD and _word(test) in BAD
    ]


def read(path: Path) -> dict[str, Any]:
    """A record's results.

    Raises:
        RecordError: As for ``flipped``.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{path}: no complete JSON, so no record or one that was cut off: {error}") from None
    try:
        results: dict[str, Any] = found["results"]
        written = results["extra"]["format"]
        newer = written > FORMAT
        _ = [_word(test) for test in _tests(results).values()]
    except (KeyError, TypeError, AttributeError):
        raise RecordError(
            f"{path}: no record of a run with pytest-rlregress. pytest --hw=PROFILE --rl-record-dir=DIR writes one."
        ) from None
    if newer:
        raise RecordError(f"{path}: format {written}, known here up to {FORMAT}: pip install -U pytest-rlregress")
    if not results["extra"].get("stack", {}).get("requirements"):
        raise RecordError(f"{path}: does not say what was installed: results.extra.stack.requirements is missing")
    return results


def _tests(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {test["name"]: test for test in results["tests"]}


def _word(test: Mapping[str, Any]) -> str:
    """The verdict; pytest's word where there is none, or where a good one was followed by an error in teardown."""
    status = str(test.get("rawStatus", test["status"]))
    verdict = test.get("extra", {}).get("verdict")
    return status if verdict is None or (verdict in GOOD and status == "error") else str(verdict)
