"""Between two runs a bad verdict that is expected is neither worse nor repaired."""

from __future__ import annotations

import json

import msgspec
import pytest

from pytest_rlregress.records import record_types
from pytest_rlregress.records.changes import Kind
from pytest_rlregress.records.history import open_history
from pytest_rlregress.records.night import compare
from pytest_rlregress.records.record_types import HarnessProperties, InstalledStack, RecordedHardware, RecordedTest

ISSUE = "https://example.org/1 (rlregress-expect.toml:1)"
#: Of a test its status, its verdict and what expects it.
RESULTS = {
    "held": ("passed", "held", ""),
    "regressed": ("failed", "regressed", ""),
    "expected": ("passed", "regressed", ISSUE),
}


@pytest.fixture
def write(tmp_path):
    """Write the record of a run with one test: ``write(hour, result)`` is its file."""

    def write(hour, result):
        status, verdict, expected = RESULTS[result]
        extra = HarnessProperties("double-bos", "guards", verdict, expected=expected)
        stack = InstalledStack(["verl==1"], versions={"verl": "1"})
        about = record_types.RunExtra(record_types.FORMAT, stack, hardware=RecordedHardware("cpu"), state="complete")
        record = record_types.begun(1_790_000_000_000 + hour * 3_600_000, about)
        record.results.tests.append(RecordedTest("a.py::test", status, status, 1, "a.py", extra))
        path = tmp_path / f"{hour}.json"
        path.write_text(json.dumps(msgspec.to_builtins(record)))
        return path

    return write


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("held", "expected", Kind.STEADY),
        ("regressed", "expected", Kind.STEADY),
        ("expected", "held", Kind.STEADY),
        ("regressed", "held", Kind.REPAIRED),
        ("expected", "regressed", Kind.UNCONFIRMED),
    ],
)
def test_change_between_two_runs(write, before, after, kind):
    first, second = write(0, before), write(1, after)
    [change] = compare(open_history([first, second]), first, [second]).changes
    assert change.kind is kind
