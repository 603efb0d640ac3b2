"""Entries that are proposed for records: the tests alone that are bad, and what tells their runs from the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_rlregress.commands.expect.proposal import is_teardown, propose
from pytest_rlregress.failures import catalogue
from pytest_rlregress.records import record_types
from pytest_rlregress.records.expectations import read_entries
from pytest_rlregress.records.record_types import HarnessProperties, InstalledStack, RecordedHardware, RecordedTest

KNOWN = catalogue.load([catalogue.SHIPPED])
GUARD = "batch/mask_length_drift/test_x.py::test_it[{}]"


def make_test(number, word, components="verl"):
    status = "failed" if word in ("regressed", "hung") else "passed"
    bad = word if status == "failed" else ""
    extra = HarnessProperties("mask-length-drift", "guards", word, components=components, bad=bad)
    return RecordedTest(GUARD.format(number), status, status, 1, "x", extra)


def make_record(words, profile="cpu", **versions):
    stack = InstalledStack(["verl==1"], versions=versions)
    extra = record_types.RunExtra(record_types.FORMAT, stack, hardware=RecordedHardware(profile))
    record = record_types.begun(1, extra)
    record.results.tests.extend(make_test(number, word) for number, word in enumerate(words))
    return record


def write(proposals):
    """Return the entries that the proposals are, once they were written and read."""
    text = "\n".join(one.write('why "so"', "https://example.org/1", "2027-01-01") for one in proposals)
    return read_entries(text, Path("mine.toml"), KNOWN, ("cpu", "h100"))


def test_one_test_of_a_failure_is_named_alone():
    [entry] = write(propose([make_record(["regressed", "held"])]))
    assert (entry.tests, entry.verdicts, entry.because) == ((GUARD.format(0),), ("regressed",), 'why "so"')


def test_failure_is_named_where_all_of_its_side_is_bad():
    [entry] = write(propose([make_record(["regressed", "regressed", "unavailable"])]))
    assert (entry.failure, entry.tests) == ("mask-length-drift", ())


def test_two_verdicts_are_two_entries():
    assert [entry.verdicts for entry in write(propose([make_record(["regressed", "hung"])]))] == [
        ("regressed",),
        ("hung",),
    ]


@pytest.mark.parametrize(
    ("good", "bad", "stack"),
    [
        ({"verl": "0.8"}, {"verl": "0.9"}, {"verl": ">=0.9"}),
        ({"verl": "0.9"}, {"verl": "0.8"}, {"verl": "<=0.8"}),
        ({"verl": "0.8", "vllm": "1"}, {"verl": "0.9", "vllm": "2"}, {"verl": ">=0.9"}),
        ({"verl": "0.8", "vllm": "1"}, {"verl": "0.8", "vllm": "2+cu130"}, {"vllm": ">=2"}),
    ],
    ids=["newer", "older", "component-of-the-failure-first", "another-component"],
)
def test_condition_is_what_differs(good, bad, stack):
    [entry] = write(propose([make_record(["held"], **good), make_record(["regressed"], **bad)]))
    assert entry.stack == stack


def test_release_between_good_ones():
    records = [
        make_record([word], verl=version) for word, version in (("held", "1"), ("regressed", "2"), ("held", "3"))
    ]
    [entry] = write(propose(records))
    assert entry.stack == {"verl": "==2"}


def test_hardware_that_differs():
    records = [make_record(["held"], "cpu", verl="1"), make_record(["regressed"], "h100", verl="1")]
    [entry] = write(propose(records))
    assert (entry.stack, entry.hardware, entry.verdicts) == ({}, ("h100",), ("regressed",))


def test_nothing_that_differs_is_a_test_that_wavers():
    [entry] = write(propose([make_record(["held"], verl="1"), make_record(["regressed"], verl="1")]))
    assert (entry.stack, entry.verdicts, entry.wavers) == ({}, ("regressed", "held"), True)


def test_what_is_expected_already_is_not_proposed():
    record = make_record(["regressed"])
    test = record.results.tests[0]
    test.status, test.raw_status, test.extra.expected = "passed", "passed", "https://example.org/1"
    assert propose([record]) == []


def test_what_a_test_leaves_behind_is_not_proposed():
    record = make_record(["held"])
    test = record.results.tests[0]
    test.status, test.raw_status = "failed", "error"
    assert propose([record]) == []
    assert is_teardown(test)
