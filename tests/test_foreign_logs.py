"""What diagnose says of excerpts of logs from public threads, which its signatures were not written from.

They were sorted into two halves by thread. Signatures were written with the one half in sight; the other was measured
when they were done. Neither is for adding an excerpt's own words to a signature: then it measures nothing any more.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_rlregress import catalogue
from pytest_rlregress.diagnose import reader
from pytest_rlregress.diagnose.findings import Diagnosis

FOLDER = Path(__file__).parent / "foreign_logs"
HALVES = ("working", "held_out")


@dataclass(frozen=True)
class Excerpt:
    """An excerpt and the truth about it: ``failure`` is what happened, or empty where it only looks like one."""

    path: Path
    source: str
    what: str
    failure: str = ""
    resembles: str = ""


@dataclass(frozen=True)
class Answered:
    """What diagnose says of an excerpt: ids of its answers, of what could be one, and how many unknown events."""

    certain: frozenset[str]
    possible: frozenset[str]
    unknown: int


def excerpts(half):
    index = tomllib.loads((FOLDER / half / "index.toml").read_text(encoding="utf-8"))["excerpt"]
    return [Excerpt(FOLDER / half / one.pop("file"), **one) for one in index]


@pytest.fixture(scope="module")
def shipped():
    return catalogue.load([catalogue.SHIPPED])


@pytest.fixture(scope="module", params=HALVES)
def answered(request, shipped):
    """Each excerpt of a half with what diagnose says of it."""
    found = []
    for excerpt in excerpts(request.param):
        diagnosis = Diagnosis(shipped)
        diagnosis.read("log", reader.read(excerpt.path, diagnosis.search))
        diagnosis.end()
        certain = frozenset(one.failure.id for one in diagnosis.documented)
        possible = frozenset(one.failure.id for one in diagnosis.possible)
        found.append((excerpt, Answered(certain, possible, len(diagnosis.unknown))))
    return found


def test_every_excerpt_has_a_source_and_a_known_id(shipped):
    every = [one for half in HALVES for one in excerpts(half)]
    assert {one.failure or one.resembles for one in every} <= shipped.keys()
    assert all(one.source.startswith("https://") for one in every)
    halves = [{one.source for one in excerpts(half)} for half in HALVES]
    assert not set.intersection(*halves), "a thread stands in both halves"
    kept = {path for half in HALVES for path in (FOLDER / half).glob("*.log")}
    assert kept == {one.path for one in every}


def test_recall(answered):
    """Of the excerpts in which a documented failure happened, how many are answered with it."""
    happened = [(excerpt, said) for excerpt, said in answered if excerpt.failure]
    missed = [excerpt.path.name for excerpt, said in happened if excerpt.failure not in said.certain]
    assert len(missed) <= len(happened) / 10, f"{len(missed)} of {len(happened)} missed: {missed}"


def test_precision(answered):
    """Of the excerpts that get answers, how many get no wrong one; what could be a failure is no answer."""
    named = [(excerpt, said) for excerpt, said in answered if said.certain]
    wrong = [excerpt.path.name for excerpt, said in named if said.certain - {excerpt.failure}]
    assert len(wrong) <= len(named) / 10, f"{len(wrong)} of {len(named)} wrong: {wrong}"
