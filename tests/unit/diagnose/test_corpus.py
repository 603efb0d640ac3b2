"""What diagnose says of logs: of excerpts of public threads, and of what programs and their releases print.

Beside each failure ``logs.toml`` has those that show it, ``look_alikes`` for each area those that only resemble one.
Each says what diagnose names, and what it says could be one, where that isn't the failure alone, or nothing. Excerpts
were written for this: without lines of source code, names, paths, addresses and times of whoever posted them. The
signatures were written with these in sight; ``looked_at_once`` was collected and measured when they were done.
"""

from __future__ import annotations

import io
import re
import tomllib
from collections import Counter
from dataclasses import dataclass

import pytest
from installed import TESTS

from pytest_rlregress.diagnosis import reader
from pytest_rlregress.diagnosis.findings import Diagnosis
from pytest_rlregress.diagnosis.reader import Search
from pytest_rlregress.failures import catalogue

#: Of ``looked_at_once``, the least share of its failures that are named, of those that are named or could be it, and of
#: its answers that are right.
NAMED, OR_COULD_BE, RIGHT = 0.5, 0.66, 0.87


@dataclass(frozen=True)
class Log:
    """A log and the truth about it: ``failure`` is what happened, or empty where it only looks like one."""

    text: str
    source: str
    failure: str = ""
    resembles: str = ""
    what: str = ""
    name: str = ""
    named: tuple[str, ...] | None = None
    could_be: tuple[str, ...] = ()


def logs_in(path, key, failure=""):
    return [Log(failure=failure, **one) if failure else Log(**one) for one in tomllib.loads(path.read_text())[key]]


@pytest.fixture(scope="module")
def shipped():
    return catalogue.load([catalogue.SHIPPED])


def ask(text, shipped):
    diagnosis = Diagnosis(shipped)
    diagnosis.read("log", reader.read_stream(io.BytesIO(text.encode()), "log"))
    diagnosis.end()
    return [sorted(one.failure.id for one in found) for found in (diagnosis.documented, diagnosis.possible)]


def differing(logs, shipped):
    """Describe the logs whose answers are others than those recorded."""
    found = []
    for log in logs:
        expected = [[log.failure] if log.failure else []] if log.named is None else [log.named]
        answers = ask(log.text, shipped)
        if answers != [*expected, list(log.could_be)]:
            found.append(f"{log.failure or log.resembles}, {log.source}: {answers}\n{log.text[:300]}")
    return "\n".join(found)


def test_diagnoses_every_recorded_log(shipped):
    logs = [
        log
        for failure in shipped.values()
        if (path := failure.folder / "logs.toml").exists()
        for log in logs_in(path, "log", failure.id)
    ]
    assert differing(logs, shipped) == ""


def test_look_alikes_get_their_expected_answers(shipped):
    logs = [log for path in sorted((TESTS / "look_alikes").glob("*.toml")) for log in logs_in(path, "log")]
    assert {log.resembles for log in logs} <= set(shipped)
    assert differing(logs, shipped) == ""


def test_trainer_is_recognised_only_by_its_own_lines(shipped):
    paths = [*TESTS.glob("look_alikes/*.toml"), *(one.folder / "logs.toml" for one in shipped.values())]
    logs = [log for path in paths if path.exists() for log in tomllib.loads(path.read_text())["log"]]
    told = Counter()
    for log in logs:
        if thread := re.search(r"/(verl|trl)/(?:issues|pull)/", log["source"]):
            search = Search(())
            search.look_for_clues(log["text"].encode())
            told[thread[1], search.trainer] += 1
    assert told["verl", "verl"] >= 30
    assert told["trl", "trl"] >= 6
    assert told["verl", "trl"] == told["trl", "verl"] == 0


@pytest.mark.slow
def test_excerpts_keep_their_diagnosis_rates(shipped):
    logs = [log for path in sorted((TESTS / "looked_at_once").glob("*.toml")) for log in logs_in(path, "excerpt")]
    answers = [(log, *ask(log.text, shipped)) for log in logs]
    happened = [(log.failure, named, could_be) for log, named, could_be in answers if log.failure]
    missed = [failure for failure, named, _ in happened if failure not in named]
    assert 1 - len(missed) / len(happened) >= NAMED, missed
    missed = [failure for failure, named, could_be in happened if failure not in named + could_be]
    assert 1 - len(missed) / len(happened) >= OR_COULD_BE, missed
    answered = [(log, named) for log, named, _ in answers if named]
    wrong = [log.name for log, named in answered if set(named) - {log.failure}]
    assert 1 - len(wrong) / len(answered) >= RIGHT, wrong
