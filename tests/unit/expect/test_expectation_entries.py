"""Files of expectations: what is refused, and what an entry is about."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlregress.failures import catalogue
from pytest_rlregress.records.expectations import (
    BAD_WORDS,
    ExpectationError,
    Here,
    find_expected,
    find_obsolete,
    load,
    read_entries,
)
from pytest_rlregress.records.record_types import HarnessProperties, RecordedTest
from pytest_rlregress.stack import Stack

KNOWN = catalogue.load([catalogue.SHIPPED])
HERE = Here(Stack({"vllm": "0.32.0", "verl": "0.9.1"}), "cpu", datetime.date(2026, 3, 14), ("linux",))
ENTRY = """
[[expect]]
failure = "mask-length-drift"
verdicts = ["regressed"]
because = "why"
issue = "https://example.org/1"
"""
NAME = "batch/mask_length_drift/test_x.py::test_it[a]"


def read(text):
    return read_entries(text, Path("mine.toml"), KNOWN, ("cpu", "h100"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("because", "becuase", r"mine.toml:2: key 'becuase': unknown; allowed: verdicts, because"),
        ("mask-length", "mask-lenght", r"mine.toml:2: key 'failure': .*Did you mean mask-length-drift"),
        ("failure", 'area = "batch"\nfailure', r"mine.toml:2: .* about one of failure, area, .* not failure and area"),
        ('failure = "mask-length-drift"', 'area = "bach"', r"key 'area': 'bach' isn't known; did you mean batch\?"),
        ('failure = "mask-length-drift"\n', "", r"an entry is about one of failure, area, component, tests$"),
        ('["regressed"]', '["held"]', r"key 'verdicts': .* first one that can fail a run"),
        ('["regressed"]', '["regresed"]', r"key 'verdicts': .*regressed"),
        ("https://example.org/1", "ticket 1", r"key 'issue': 'ticket 1' is not allowed"),
        ("because", 'hardware = "h10"\nbecause', r"key 'hardware': 'h10' isn't known; did you mean h100\?"),
        ("because", 'stack = { vllm = ">=2,<1" }\nbecause', r"no version of vllm is >=2,<1"),
        ("because", 'stack = { vllm = "new" }\nbecause', r"key 'stack'"),
        ("because", 'system = "macos"\nbecause', r"key 'system': .* of linux, windows, wsl2"),
        ("because", 'until = "soon"\nbecause', r"key 'until': .* a day such as 2027-01-31, without quotes"),
        ("[[expect]]", "[[except]]", r"mine.toml: key 'except': unknown; allowed: expect"),
        ("[[expect]]", "[[expect]", r"mine.toml: not readable as TOML"),
        (ENTRY, ENTRY + ENTRY, r"mine.toml:8: says again what mine.toml:2 says of mask-length-drift"),
    ],
)
def test_what_is_wrong_is_said(old, new, said):
    with pytest.raises(ExpectationError, match=said):
        read(ENTRY.replace(old, new, 1))


def test_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ExpectationError, match="not readable as TOML"):
        load(tmp_path, KNOWN, ())


@pytest.mark.parametrize("condition", ["<0.9", ">=0.31,<0.32", "!=0.32.0", "==0.32.*", ">0.31,!=0.32", "~=0.31"])
def test_condition_that_some_version_fulfils_is_taken(condition):
    [entry] = read(ENTRY.replace("because", f'stack = {{ vllm = "{condition}" }}\nbecause', 1))
    assert entry.stack == {"vllm": condition}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ('failure = "mask-length-drift"', True),
        ('failure = "double-bos"', False),
        ('area = "batch"', True),
        ('area = "tokens"', False),
        ('tests = "batch/*::test_it[a]"', True),
        ('tests = ["x", "*[b]", "*[[]a]"]', False),
        ('tests = "*::test_it"', False),
        ('component = "vllm-engine"', False),
    ],
)
def test_tests_that_an_entry_is_about(selector, selected):
    entries = read(ENTRY.replace('failure = "mask-length-drift"', selector))
    found = find_expected(entries, HERE, "regressed", NAME, "mask-length-drift")
    assert bool(found) is selected
    assert find_expected(entries, HERE, "changed", NAME, "mask-length-drift") is None


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('stack = { vllm = ">=0.32" }', True),
        ('stack = { vllm = ">=0.32", trl = ">1" }', False),
        ('hardware = ["h100", "cpu"]', True),
        ('hardware = "h100"', False),
        ('system = "linux"', True),
        ('system = "windows"', False),
        ("until = 2026-03-15", True),
        ("until = 2026-03-14", False),
        ('until = { vllm = "0.33" }', True),
        ('until = { vllm = "0.32" }', False),
    ],
)
def test_conditions(condition, holds):
    [entry] = read(ENTRY.replace("because", f"{condition}\nbecause", 1))
    assert entry.holds(HERE) is holds


@given(
    st.dictionaries(st.sampled_from(["failure", "verdicts", "stack", "until", "tests", "x"]), st.text() | st.integers())
)
def test_any_entry_is_read_or_refused_in_a_sentence(values):
    text = "[[expect]]\n" + "".join(f"{key} = {value!r}\n" for key, value in values.items())
    said = ""
    try:
        read(text)
    except ExpectationError as error:
        said = str(error)
    assert not said or "mine.toml" in said


def test_every_word_that_can_fail_a_run_can_be_expected():
    for word in BAD_WORDS:
        [entry] = read(ENTRY.replace("regressed", word))
        assert entry.verdicts == (word,)


def make_test(word, expected=""):
    extra = HarnessProperties("mask-length-drift", "guards", word, expected=expected)
    status = "failed" if word == "regressed" and not expected else "passed"
    return RecordedTest(NAME, status, status, 1, "x", extra)


@pytest.mark.parametrize(
    ("tests", "every_test", "why"),
    [
        ([make_test("held")], True, "1 test held"),
        ([make_test("held"), make_test("regressed")], True, ""),
        ([make_test("held"), make_test("regressed", "https://example.org/1")], True, ""),
        ([make_test("unavailable")], True, ""),
        ([], True, "no test of this run is meant by it"),
        ([], False, ""),
    ],
    ids=["good", "still-red", "one-still-so", "says-nothing", "no-test", "not-asked-for"],
)
def test_entry_that_is_obsolete(tests, every_test, why):
    found = find_obsolete(read(ENTRY), HERE, tests, every_test=every_test)
    assert [reason for _, reason in found] == ([why] if why else [])


def test_entry_says_which_lines_it_is():
    [first, second] = read(f"{ENTRY}\n# why\n{ENTRY.replace('mask-length-drift', 'double-bos')}")
    assert (first.lines, second.lines) == ((2, 8), (10, 14))
