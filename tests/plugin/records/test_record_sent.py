"""A record that is sent to others: the run's own passes the check, and says nothing of the machine's owner."""

from __future__ import annotations

import json
import platform
import re

from pytest_rlregress.records.checking import check_record, make_digest

TESTS = """
import pytest

@pytest.mark.parametrize("text", ["\\ud800", "\u00e9", "a/b"])
def test_passes(text):
    pass

def test_fails():
    assert [0.1, 1e300] == [], "too many"
"""


def test_a_written_record_has_its_digest_and_no_secret(pytester, monkeypatch):
    for name in ("SOME_TOKEN", "LOGNAME", "USER"):
        monkeypatch.setenv(name, "value-of-the-environment")
    pytester.makepyfile(test_sent=TESTS)
    pytester.runpytest_subprocess("--hw=cpu", "--rl-record-dir=records", "-p", "no:cacheprovider", "test_sent.py")
    [path] = (pytester.path / "records").glob("*.json")
    found = check_record(path)
    assert found.answers["whole"][0]
    assert found.answers["unedited"][0]
    text = path.read_text()
    assert "value-of-the-environment" not in text
    assert not re.search(rf"(?<![\w-]){re.escape(platform.node())}(?![\w-])", text)
    record = json.loads(text)
    assert record["results"]["extra"]["digest"] == make_digest(record["results"])
    extra = record["results"]["extra"]
    assert {*extra} == {"format", "stack", "run", "hardware", "git", "state", "answer", "digest"}
    assert {*extra["run"]} == {"arguments", "selection", "settings"}
