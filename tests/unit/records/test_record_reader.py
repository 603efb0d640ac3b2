"""Records read again: what went from good to bad between two of them, and what isn't a record."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from record_checks import document

from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records.reader import RecordError, flipped, lock, read
from pytest_rlregress.records.record_types import FORMAT, HarnessProperties, RecordedTest
from pytest_rlregress.stack.locks import LockError

OTHERS = {
    "reportFormat": "CTRF",
    "specVersion": "0.0.0",
    "results": {"tool": {"name": "jest"}, "summary": {"tests": 0}, "tests": []},
}


@pytest.fixture
def compare(tmp_path):
    """``compare(good, bad)`` of two records, as objects or as text."""

    def compare(*records):
        paths = (tmp_path / "good.json", tmp_path / "bad.json")
        for path, record in zip(paths, records, strict=True):
            path.write_text(record if isinstance(record, str) else json.dumps(record))
        return [(new.name, new.extra.failure, old.word, new.word) for old, new in flipped(*paths)]

    return compare


def test_finds_tests_that_went_from_good_to_bad(compare):
    good = document(a="absent", b="held", c="passed", d="held", e="failed", f="reproduced", g="passed", gone="held")
    bad = document(
        c="failed", b="regressed", a="reproduced", d="held", e="failed", f="reproduced", g="skipped", new="hung"
    )
    assert compare(good, bad) == [
        ("c", "", "passed", "failed"),
        ("b", "short-column", "held", "regressed"),
        ("a", "short-column", "absent", "reproduced"),
    ]
    assert compare(good, good) == []


def test_a_remedy_that_held_and_then_leaked_went_bad(compare):
    leaked = document(b="held")
    leaked["results"]["tests"][0].update(status="failed", rawStatus="error")
    assert compare(document(b="held"), leaked) == [("b", "short-column", "held", "error")]
    unwanted = document(a="absent")  # as --rl-strict has it
    unwanted["results"]["tests"][0].update(status="failed", rawStatus="failed")
    assert compare(document(a="absent"), unwanted) == []


@pytest.mark.parametrize(
    ("verdict", "raw", "wanted", "bad"),
    [
        ("", "passed", "passed", Rank.GOOD),
        ("", "xfailed", "xfailed", Rank.GOOD),
        ("", "error", "error", Rank.FAILING),
        ("", "interrupted", "interrupted", Rank.NOTHING),
        ("held", "passed", "held", Rank.GOOD),
        ("absent", "failed", "absent", Rank.GOOD),
        ("reproduced", "passed", "reproduced", Rank.DOCUMENTED),
        ("reproduced", "error", "error", Rank.FAILING),  # and leaked
        ("crashed", "failed", "crashed", Rank.FAILING),
        ("hung", "error", "hung", Rank.FAILING),
        ("unavailable", "skipped", "unavailable", Rank.NOTHING),
        ("unavailable", "failed", "failed", Rank.FAILING),  # a guard that --hw had promised
    ],
)
def test_each_test_has_a_word_and_a_rank(verdict, raw, wanted, bad):
    test = RecordedTest("x", "failed", raw, 1, "x.py", HarnessProperties(verdict=verdict))
    assert (test.word, rank(test.word)) == (wanted, bad)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (json.dumps(document(a="held"))[:-9], "cut off"),
        ("<html>", "no complete JSON"),
        ("[" * 100_000, "no complete JSON"),
        ("", "empty"),
        (" \n", "empty"),
        ("[]", "no record of a run"),
        ('"x"', "no record of a run"),
        ('{"results": {"tests": []}}', "no record of a run with pytest-rlregress: pytest --hw=PROFILE"),
        (OTHERS, "no record of a run with pytest-rlregress but another tool's test report: pytest --hw=PROFILE"),
        ('{"results": {"tests": [], "extra": {"format": "x"}}}', "no record of a run"),
        ('{"results": {"tests": [1], "extra": {"format": 1}}}', "damaged"),
        ({"reportId": 1, "results": document()["results"]}, "damaged"),
        ({"reportId": "a", "results": {**document()["results"], "tests": [{"name": "x"}]}}, "damaged.*status"),
        ({"reportId": "a", "results": {**document()["results"], "summary": {"start": None}}}, "damaged"),
        (document(form=FORMAT + 1), f"format {FORMAT + 1}, known here up to {FORMAT}: pip install -U"),
        ({"results": {"extra": {"format": FORMAT + 1}}}, f"format {FORMAT + 1}"),  # whatever else that one changed
        (document(stack=()), "what was installed"),
    ],
)
def test_rejects_a_file_that_is_not_a_record(compare, record, words):
    with pytest.raises(RecordError, match=rf"good\.json: .*{words}") as raised:
        compare(record, document())
    assert "\n" not in str(raised.value)
    with pytest.raises(RecordError, match=rf"bad\.json: .*{words}"):
        compare(document(), record)


def test_rejects_a_record_that_is_not_text(tmp_path):
    path = tmp_path / "odd.json"
    path.write_bytes(b"\xff\x00\x93\xfe\x01")
    with pytest.raises(RecordError, match="no complete JSON"):
        read(path)
    with pytest.raises(RecordError, match=f"{tmp_path}: a folder, not a record: name a file in it"):
        read(tmp_path)
    with pytest.raises(RecordError, match=r"none\.json: cannot be read: No such file"):
        flipped(tmp_path / "none.json", tmp_path / "none.json")


def test_a_record_from_before_a_key_existed_is_read(tmp_path):
    path = tmp_path / "old.json"
    old = document(a="held")
    path.write_text(f"\ufeff{json.dumps(old)}", encoding="utf-8")  # as an editor may leave it
    record = read(path)
    assert (record.report_id, record.results.summary.stop, record.results.tests[0].word) == (old["reportId"], 2, "held")
    extra = record.results.extra
    assert (extra.state, extra.hardware.profile, extra.git, extra.run.arguments) == ("complete", None, None, [])


@pytest.mark.process
def test_reading_needs_no_pytest():
    script = (
        "import sys, pytest_rlregress.records.reader; assert not {'pytest', 'psutil', 'jsonschema'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_reads_the_installed_versions_as_a_lock(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document(stack=("torch==2.13.0+cpu", "numpy==2.3.5"))))
    assert dict(lock(path).lines) == {"torch": "torch==2.13.0+cpu", "numpy": "numpy==2.3.5"}


def test_rejects_inexact_versions(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document(stack=("torch==2.13.0", "numpy>=2"))))
    with pytest.raises(LockError, match=r"a\.json: line 2: 'numpy>=2': not exactly one version"):
        lock(path)
