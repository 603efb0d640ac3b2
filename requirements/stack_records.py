"""Short records of runs on other stacks: the gravest verdict of each side of each failure, and why, in a line.

A short record is a JSON object, a line a side: ``"mask-length-drift guards": ["held", ""]``. The checks of components
are in it too, ``"vllm-engine component": ["passed", ""]``, and any other test under its own name, where it failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.verdicts import Rank, Verdict, rank
from pytest_rlregress.logs.ansi import stripped
from pytest_rlregress.records import reader
from pytest_rlregress.records.record_types import RecordedTest
from pytest_rlregress.util.text import on_one_line

SIDES = ("reproduces", "guards")
# What is blocked says more of a stack than what is unavailable, which may be for want of a GPU.
_GRAVEST = ("error", "failed", *(one for one in Verdict if one != Verdict.UNAVAILABLE), Verdict.UNAVAILABLE)
_NOTE_CHARACTERS = 240


@dataclass(frozen=True)
class SideResult:
    """What came out of the tests of one side of a failure: the gravest verdict or pytest's word, and why."""

    word: str
    note: str = ""

    @property
    def bad(self) -> bool:
        """Whether it fails the run."""
        return rank(self.word) is Rank.FAILING


@dataclass(frozen=True)
class ChangedResult:
    """A side, component or test whose result is another one on another stack."""

    key: str
    before: SideResult
    after: SideResult


ShortRecord = Mapping[str, SideResult]


def shorten(path: Path) -> ShortRecord:
    """Read the record of a run.

    Raises:
        RecordError: The file isn't a record.
        ValueError: The run did not end by itself.
    """
    results = reader.read(path).results
    if results.extra.state != "complete":
        raise ValueError(f"the run is {results.extra.state}")
    found: dict[str, SideResult] = {}
    for test in results.tests:
        key, result = _key(test), SideResult(test.word, _note(test.extra.note or test.message))
        if is_named(key) or result.bad:
            found[key] = min(found.get(key, result), result, key=_gravity)
    return dict(sorted(found.items()))


def _key(test: RecordedTest) -> str:
    if test.extra.component:
        return f"{test.extra.component} component"
    return f"{test.extra.failure} {test.extra.side}" if test.extra.failure else test.name


def is_named(key: str) -> bool:
    """Return whether a key is of a side or a component, not of another test."""
    return key.rpartition(" ")[2] in (*SIDES, "component")


def _gravity(result: SideResult) -> int:
    return _GRAVEST.index(result.word) if result.word in _GRAVEST else len(_GRAVEST)


def _note(text: str) -> str:
    """Return a note without what differs between machines and runs: folders, processes, addresses, a golden's key."""
    text = re.sub(r"(?<![\w.:/-])/(?:[\w.+@~-]+/)+", "…/", on_one_line(stripped(text)))
    return re.sub(r"\(pid=.*|0x[0-9a-f]{6,}|(?<=this key )\(.*\)", "…", text)[:_NOTE_CHARACTERS]


def write(path: Path, record: ShortRecord) -> None:
    """Write a short record, a line a side."""
    lines = (
        f"{json.dumps(key)}: {json.dumps([one.word, one.note], ensure_ascii=False)}" for key, one in record.items()
    )
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read(path: Path) -> ShortRecord:
    """Read a short record."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {key: SideResult(*result) for key, result in found.items()}


def replaced(before: ShortRecord, part: ShortRecord, folders: Collection[str]) -> ShortRecord:
    """Put a run of some folders of scenarios in the place of what a record has of them."""
    known = catalogue.load([catalogue.SHIPPED])

    def stays(key: str) -> bool:
        if not is_named(key):
            return key.partition("/")[0] not in folders
        name, _, side = key.rpartition(" ")
        return side == "component" or (name in known and known[name].area not in folders)

    return dict(sorted({**{key: result for key, result in before.items() if stays(key)}, **part}.items()))


def bad(record: ShortRecord) -> dict[str, SideResult]:
    """Select what fails the run."""
    return {key: result for key, result in record.items() if result.bad}


def changes(before: ShortRecord, after: ShortRecord) -> Iterator[ChangedResult]:
    """Find what both records have with another result, and the tests that are there only where they fail."""
    passed = SideResult("passed")
    for key in dict.fromkeys([*before, *after]):
        absent = None if is_named(key) else passed
        pair = [record.get(key, absent) for record in (before, after)]
        if pair[0] and pair[1] and pair[0].word != pair[1].word:
            yield ChangedResult(key, pair[0], pair[1])
