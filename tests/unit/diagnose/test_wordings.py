"""What diagnose says of the words in which programs and their releases tell a failure.

Each entry of ``wordings/FOLDER.toml`` is what a release prints, most of it read in its source, and the answer to it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

import pytest
from installed import TESTS

from pytest_rlregress import catalogue
from pytest_rlregress.diagnose import reader
from pytest_rlregress.diagnose.findings import Diagnosis

FOLDER = TESTS / "wordings"


@dataclass(frozen=True)
class Wording:
    """What a program prints: ``answer`` is certain, possible, or none where it tells something else."""

    failure: str
    program: str
    text: str
    answer: str = "certain"


WORDINGS = [
    Wording(**one)
    for path in sorted(FOLDER.glob("*.toml"))
    for one in tomllib.loads(path.read_text(encoding="utf-8"))["wording"]
]


@pytest.fixture(scope="module")
def shipped():
    return catalogue.load([catalogue.SHIPPED])


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda one: f"{one.failure}: {one.program}")
def test_wording(wording, shipped):
    diagnosis = Diagnosis(shipped)
    diagnosis.read("log", reader.relevant_lines([wording.text.encode()], diagnosis.search))
    diagnosis.end()
    certain = {one.failure.id for one in diagnosis.documented}
    possible = {one.failure.id for one in diagnosis.possible}
    if wording.answer == "none":
        assert wording.failure not in certain | possible
    elif wording.answer == "possible":
        assert wording.failure in possible
        assert not certain
    else:
        assert wording.answer == "certain"
        assert certain == {wording.failure}
