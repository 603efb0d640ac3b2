"""Where a run says it is, and that what takes longest begins first."""

from __future__ import annotations

import pytest

from pytest_rlregress.harness.durations import RunProgress

TESTS = [f"scenarios/a/test_a.py::test_{number}" for number in range(4)]
SUITE = {
    "test_short": "import pytest\n@pytest.mark.needs('pydantic')\n@pytest.mark.parametrize('n', range(9))\n"
    "def test_it(n): pass\n",
    "test_slow": "import pytest, time\n@pytest.mark.isolated\ndef test_it(): time.sleep(2)\n",
}


@pytest.mark.parametrize(
    ("took", "expected", "said"),
    [
        # 2 of 12 expected seconds took 5: the fourth test counts as their mean, 3 s
        ({0: 4.0, 1: 1.0}, {0: 2.0, 1: 4.0, 2: 3.0}, "1 of 4 tests in 5.0 s, about 25 s left; running: "),
        ({0: 4.0, 1: 1.0}, {0: 2.0}, "1 of 4 tests in 5.0 s; running: "),
        ({}, dict.fromkeys(range(4), 1.0), "0 of 4 tests in 5.0 s; running: "),
    ],
)
def test_estimates_the_time_left_from_the_last_run(request, took, expected, said):
    progress = RunProgress(request.config, print)
    vars(progress).update(_tests=TESTS, _begun=98.0, _running={TESTS[1]: 100.0})
    vars(progress).update(_took={TESTS[n]: s for n, s in took.items()})
    vars(progress).update(_expected={TESTS[n]: s for n, s in expected.items()})
    assert progress.describe(103.0) == f"{said}a/test_a.py::test_1 (3.0 s)"


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.slow)], ids=["alone", "xdist"])
def test_prints_progress_during_a_run(run, pytester, workers):
    pytester.makeconftest("from pytest_rlregress.harness import durations\ndurations.EVERY_SECONDS = 0.5, 0.5")
    result = run(SUITE, "--hw=cpu", ".", *workers)
    result.assert_outcomes(passed=10)
    result.stdout.fnmatch_lines(["*rlregress: 9 of 10 tests in *s; running: test_slow.py::test_it (* s)"])
    result = run({}, "--hw=cpu", ".", *workers)
    result.stdout.fnmatch_lines(["*rlregress: 9 of 10 tests in *, about * left; running: test_slow.py::test_it (* s)"])


@pytest.mark.slow
def test_slowest_tests_of_the_last_run_begin_first(run):
    files = {f"test_{name}": "import pytest\n@pytest.mark.needs('pydantic')\ndef test_it(): pass\n" for name in "abc"}
    for name, seconds in zip("abc", (0, 2, 0), strict=True):
        files[f"test_{name}"] = files[f"test_{name}"].replace("pass", f"import time; time.sleep({seconds})")
        files[f"test_{name}"] = files[f"test_{name}"].replace("@", f"@pytest.mark.isolated(group='{name}')\n@", 1)
    first = [line for line in run(files, "--hw=cpu", ".", "-n1", "-v").outlines if "PASSED" in line]
    again = [line for line in run({}, "--hw=cpu", ".", "-n1", "-v").outlines if "PASSED" in line]
    assert [line.split("::")[0][-1 - len(".py")] for line in first] == ["a", "b", "c"]
    assert again[0].split("::")[0][-1 - len(".py")] == "b"
