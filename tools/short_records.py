"""Short records: the gravest verdict of each side of a failure, and why; what docs/stacks.md is made of."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress.failures.verdicts import Rank, Verdict, rank
from pytest_rlregress.records.record_types import RecordedTest
from pytest_rlregress.records.wants import read_want
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util.text import on_one_line, strip_escapes

#: The key of a short record that says how many tests gave a verdict, of those that can run there.
JUDGED = "tests judged"
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


ShortRecord = Mapping[str, SideResult]


@dataclass(frozen=True)
class RecordedStack:
    """What was installed, and what came out on it.

    Attributes:
        place: The file in the repository: the lock, or a record that somebody sent.
    """

    name: str
    about: str
    place: str
    lock: Lock
    record: ShortRecord


def shorten(tests: Sequence[RecordedTest]) -> ShortRecord:
    """Shorten what came of tests to the gravest verdict of each side, and what else failed."""
    found = {JUDGED: count_judged(tests)}
    for test in tests:
        key, result = test.name, SideResult(test.word, _shorten_note(test.extra.note or test.message))
        if test.extra.component:
            key = f"{test.extra.component} component"
        elif test.extra.failure:
            key = f"{test.extra.failure} {test.extra.side}"
        elif not result.bad:
            continue
        found[key] = min(found.get(key, result), result, key=_place_by_gravity)
    return dict(sorted(found.items()))


def _place_by_gravity(result: SideResult) -> int:
    return _GRAVEST.index(result.word) if result.word in _GRAVEST else len(_GRAVEST)


def _shorten_note(text: str) -> str:
    """Return a note without what differs between machines and runs: folders, processes, addresses, a golden's key."""
    text = re.sub(r"(?<![\w.:/-])/(?:[\w.+@~-]+/)+", "…/", on_one_line(strip_escapes(text)))
    return re.sub(r"\(pid=.*|0x[0-9a-f]{6,}|(?<=this key )\(.*\)", "…", text)[:_NOTE_CHARACTERS]


def write_record(path: Path, record: ShortRecord) -> None:
    """Write a short record, a line a side."""
    lines = (
        f"{json.dumps(key)}: {json.dumps([one.word, one.note], ensure_ascii=False)}" for key, one in record.items()
    )
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def count_judged(tests: Iterable[RecordedTest]) -> SideResult:
    """Count the tests that gave a verdict, of those whose components are installed and work.

    The note names the releases that the others could not drive, each with how many. What needs a GPU or another system
    is not counted, as no stack could bring it here.
    """
    tests = [test for test in tests if test.extra.failure]
    judged = sum(rank(test.word) is not Rank.NOTHING for test in tests)
    wants = [read_want(test) for test in tests if test.word == Verdict.UNAVAILABLE]
    releases = Counter(want.release or "others" for want in wants if not want.absent)
    named = ", ".join(f"{release} ({count})" for release, count in releases.most_common())
    return SideResult(f"{judged} of {judged + releases.total()}", named)


def read_record(path: Path) -> ShortRecord:
    """Read a short record."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {key: SideResult(*result) for key, result in found.items()}
