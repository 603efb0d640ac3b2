"""A run with a file of expectations: green for what is known, red for what is new and for what is over."""

from __future__ import annotations

import json
import sys

import pytest

SCENARIO = """
import os
import pytest

@pytest.mark.guards("short-column")
@pytest.mark.parametrize("number", [1, 2])
def test_remedy(number):
    assert number == 2 or os.path.exists("mended")

@pytest.mark.needs("numpy")
def test_plain():
    assert os.path.exists("mended")

@pytest.fixture
def engine():
    assert os.path.exists("mended")

@pytest.mark.needs("numpy")
def test_set_up(engine):
    pass
"""
KNOWN = """
[[expect]]
failure = "short-column"
verdicts = ["regressed"]
because = "waits for a release"
issue = "https://example.org/issues/1"

[[expect]]
tests = "*::test_plain"
verdicts = ["failed"]
because = "waits for a release"
issue = "https://example.org/issues/2"

[[expect]]
tests = ["*::test_set_up"]
verdicts = ["error"]
because = "waits for a release"
issue = "https://example.org/issues/2"
"""
FILE = "rlregress-expect.toml"


@pytest.fixture
def night(pytester, run, short_column):
    """Run the scenario with a file of expectations: ``night(text, *options)``."""
    (pytester.path / "mine" / "test_it.py").write_text(SCENARIO)

    def night(text, *options):
        (pytester.path / FILE).write_text(text)
        return run({}, "mine", "--hw=cpu", "--rl-record-dir=records", *options)

    return night


def read_words(pytester):
    [path] = (pytester.path / "records").glob("*.json")
    tests = json.loads(path.read_text())["results"]["tests"]
    return {test["name"].partition("::")[2]: (test["status"], test["extra"].get("expected", "")) for test in tests}


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["one-process", "xdist"])
def test_known_is_green_and_says_so(night, pytester, workers):
    result = night(KNOWN, *workers)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "OK on cpu: 1 guard held; 3 tests bad as expected.",
            "Known and looked after, 3 tests: short-column regressed (1): https://example.org/issues/1",
        ]
    )
    words = read_words(pytester)
    assert words["test_remedy[1]"] == ("passed", f"https://example.org/issues/1 ({FILE}:2)")
    assert words["test_remedy[2]"] == ("passed", "")
    assert words["test_set_up"] == ("passed", f"https://example.org/issues/2 ({FILE}:14)")


@pytest.mark.parametrize("ending", ["os.abort()", "assert 0"])
def test_crash_is_no_failed_assertion(night, pytester, ending):
    (pytester.path / "mine" / "test_it.py").write_text(
        f"import os, pytest\n@pytest.mark.needs('numpy')\ndef test_plain(): {ending}\n"
    )
    assert night(KNOWN).ret == (1 if "abort" in ending else 0)
    assert night(KNOWN.replace('"failed"', '"crashed"')).ret == (0 if "abort" in ending else 1)


def test_what_an_expected_test_leaves_behind_is_red(night, pytester):
    leaves = "\n@pytest.fixture\ndef left():\n    yield\n    assert 0\n"
    scenario = SCENARIO.replace("def test_plain():", "def test_plain(left):") + leaves
    (pytester.path / "mine" / "test_it.py").write_text(scenario)
    assert night(KNOWN).ret == 1
    assert read_words(pytester)["test_plain"] == ("failed", "")


def test_new_is_red(night):
    result = night(KNOWN.replace('["regressed"]', '["hung"]'))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["FAILED on cpu: short-column: 1 of 2 guards regressed;*"])


def test_mended_is_red_with_the_lines_to_delete(night, pytester):
    (pytester.path / "mended").touch()
    result = night(KNOWN)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            f"- {FILE}, lines 2 to 6 (short-column): 2 tests held",
            f"- {FILE}, lines 8 to 12 (*::test_plain): 1 test passed",
            "FAILED on cpu: 3 expectations to delete: *",
        ]
    )


@pytest.mark.parametrize(
    ("until", "said"),
    [("2020-01-01", "until 2020-01-01 only"), ('{ pytest = "1" }', "until pytest 1 only, and")],
    ids=["day", "release"],
)
def test_entry_that_is_over_is_red(night, until, said):
    result = night(KNOWN.replace("because =", f"until = {until}\nbecause =", 1))
    assert result.ret == 1
    assert said in " ".join(" ".join(result.outlines).split())


@pytest.mark.parametrize("condition", ['stack = { numpy = "<1" }', 'hardware = "h100"', 'system = "windows"'])
def test_condition_that_is_not_true_here_says_nothing(night, pytester, condition):
    elsewhere = KNOWN.replace("because =", f"{condition}\nbecause =")
    assert night(elsewhere).ret == 1
    (pytester.path / "mended").touch()
    assert night(elsewhere).ret == 0


def test_tests_that_waver_are_green_either_way(night, pytester):
    wavering = KNOWN.replace('["regressed"]', '["regressed", "held"]').replace('["failed"]', '["failed", "passed"]')
    wavering = wavering.replace('["error"]', '["error", "passed"]')
    assert night(wavering).ret == 0
    (pytester.path / "mended").touch()
    assert night(wavering).ret == 0


def test_chosen_tests_show_no_entry_to_be_obsolete(night, pytester):
    (pytester.path / "mended").touch()
    assert night(KNOWN, "-k", "plain").ret == 0


def test_bad_file_is_a_usage_error(night):
    result = night(KNOWN.replace("short-column", "short-colum"))
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{FILE}:2: key 'failure'*Did you mean short-column?*"])


def test_record_is_written_down_and_read_again(night, pytester):
    assert night("").ret == 1
    [record] = (pytester.path / "records").glob("*.json")
    (pytester.path / FILE).unlink()
    command = [
        sys.executable,
        "-m",
        "pytest_rlregress.cli",
        "expect",
        str(record),
        "--because",
        "known",
        "--issue",
        "https://example.org/1",
        "--write",
    ]
    written = pytester.run(*command)
    assert written.ret == 0, written.outlines
    text = (pytester.path / FILE).read_text()
    assert pytester.run(*command).outlines == ["Nothing new to expect: no test failed that isn't expected."]
    assert night(text).ret == 0
    (pytester.path / "mended").touch()
    assert night(text).ret == 1
