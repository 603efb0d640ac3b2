"""What diagnose says of logs from public threads: excerpts of what programs print, with the truth of the thread.

Each was written for this folder: without lines of source code, names, paths, addresses and times of whoever posted
it. The signatures were written with ``worked_with`` in sight; ``looked_at_once`` was collected and measured when they
were done. An excerpt of it that a signature is changed for belongs to the other folder from then on.
"""

from __future__ import annotations

import io
import tomllib
from dataclasses import dataclass

import pytest
from installed import TESTS

from pytest_rlregress import catalogue
from pytest_rlregress.diagnose import reader
from pytest_rlregress.diagnose.findings import Diagnosis

pytestmark = pytest.mark.slow
FOLDER = TESTS / "foreign_logs"
#: Of each folder, the least share of its failures that are answered with their id, of its failures that are answered or
#: could be it, and of its answers that are right.
LEAST = {"worked_with": (0.78, 0.91, 0.93), "looked_at_once": (0.5, 0.66, 0.87)}


@dataclass(frozen=True)
class Excerpt:
    """An excerpt and the truth about it: ``failure`` is what happened, or empty where it only looks like one."""

    name: str
    source: str
    what: str
    text: str
    failure: str = ""
    resembles: str = ""


def excerpts(folder):
    files = sorted((FOLDER / folder).glob("*.toml"))
    return [Excerpt(**one) for file in files for one in tomllib.loads(file.read_text(encoding="utf-8"))["excerpt"]]


@pytest.fixture(scope="module")
def shipped():
    return catalogue.load([catalogue.SHIPPED])


@pytest.fixture(scope="module", params=LEAST)
def answered(request, shipped):
    """A folder, and each of its excerpts with the ids that diagnose answers, and with those that it could be."""
    found = []
    for excerpt in excerpts(request.param):
        diagnosis = Diagnosis(shipped)
        diagnosis.read("log", reader.read_stream(io.BytesIO(excerpt.text.encode()), "log", diagnosis.search))
        diagnosis.end()
        certain, possible = diagnosis.documented, diagnosis.possible
        found.append((excerpt, {one.failure.id for one in certain}, {one.failure.id for one in possible}))
    return request.param, found


def test_every_excerpt_has_a_source_and_a_known_id(shipped):
    every = [one for folder in LEAST for one in excerpts(folder)]
    assert {one.failure or one.resembles for one in every} <= shipped.keys()
    assert all(one.source.startswith("https://") for one in every)
    folders = [{one.source for one in excerpts(folder)} for folder in LEAST]
    assert not set.intersection(*folders), "a thread stands in both folders"
    names = [(folder, one.name) for folder in LEAST for one in excerpts(folder)]
    assert len({*names}) == len(names)


@pytest.mark.parametrize("could_be", [False, True], ids=["answered", "or could be"])
def test_recall(answered, could_be):
    """Of the excerpts in which a documented failure happened, how many are answered with it, or could be it."""
    folder, found = answered
    happened = [(excerpt, ids | possible if could_be else ids) for excerpt, ids, possible in found if excerpt.failure]
    missed = [excerpt.name for excerpt, ids in happened if excerpt.failure not in ids]
    least = LEAST[folder][could_be]
    assert 1 - len(missed) / len(happened) >= least, f"{len(missed)} of {len(happened)} missed: {missed}"


def test_precision(answered):
    """Of the excerpts that get answers, how many get no wrong one."""
    folder, found = answered
    named = [(excerpt, ids) for excerpt, ids, _ in found if ids]
    wrong = [excerpt.name for excerpt, ids in named if ids - {excerpt.failure}]
    assert 1 - len(wrong) / len(named) >= LEAST[folder][2], f"{len(wrong)} of {len(named)} wrong: {wrong}"
