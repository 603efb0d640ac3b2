"""Ordinary options of pytest do with contained tests what a pytest user expects, or say at once why they cannot."""

from __future__ import annotations

import sys

import pytest

ONE = """
import os, pytest

@pytest.fixture
def engine():
    yield os.getpid()

@pytest.mark.isolated
def test_one(engine): assert engine == 0
"""
TWO = ONE + "\n@pytest.mark.isolated\ndef test_two(): pass\n"


@pytest.mark.parametrize("option", ["--setup-show", "--setup-only"])
def test_rejects_options_that_do_not_reach_contained_tests(run, option):
    result = run(TWO, option, here=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {option} does not reach into contained tests*2 are selected*--rl-inline.*"])


def test_an_interrupt_names_the_running_test(run):
    interrupt = """
        import os, pytest, signal, time
        os.environ.setdefault("PID_OF_PYTEST", str(os.getpid()))
        @pytest.mark.isolated
        def test_one():
            os.kill(int(os.environ["PID_OF_PYTEST"]), signal.SIGINT)
            time.sleep(60)
    """
    result = run(interrupt)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["rlregress: interrupted while test_it.py::test_one ran"])


def test_an_id_with_dashes_selects_its_tests(run, short_column):
    body = """
        import pytest
        @pytest.mark.guards("short-column")
        def test_remedy(): pass
        @pytest.mark.isolated
        def test_other(): pass
    """
    run(body, "-k", "short-column").assert_outcomes(passed=1, deselected=1)


def test_set_up_is_shown_inline(run):
    result = run(TWO, "--setup-show", "--rl-inline")
    result.stdout.fnmatch_lines(["*contained tests run in this process*", "*SETUP    F engine*"])


@pytest.mark.parametrize("option", ["--fixtures", "--fixtures-per-test", "--markers"])
def test_shows_fixtures_and_markers_instead_of_a_run(run, option):
    result = run(ONE, "--hw=cpu", option, "test_it.py", here=True)
    assert result.ret == pytest.ExitCode.OK
    assert not result.errlines
    result.stdout.fnmatch_lines(
        ["@pytest.mark.reproduces(id, fidelity=None, *" if option == "--markers" else "engine*"]
    )


def test_pdb_opens_at_a_failure(pytester):
    pytester.makepyfile(test_it=TWO)
    result = pytester.run(sys.executable, "-m", "pytest", "--pdb", stdin=b"p 'engine', engine > 0\nq\n")
    result.stdout.fnmatch_lines(["*contained tests run in this process*", "*entering PDB*", "*('engine', True)*"])


def test_breakpoint_in_a_child_says_how_to_debug(run):
    body = "import pytest, pdb\n@pytest.mark.isolated\ndef test_one(): breakpoint()\n"
    body += "@pytest.mark.isolated\ndef test_two(): pdb.set_trace()\n@pytest.mark.isolated\ndef test_three(): pass"
    result = run(body)
    result.assert_outcomes(failed=2, passed=1)
    assert result.stdout.str().count("Failed: a debugger was started in a contained test") >= 2


def test_inline_tests_have_their_verdicts_and_the_variables_of_their_marker(run, short_column):
    body = """
        import os, pytest
        @pytest.mark.reproduces("short-column")
        def test_act(): raise RuntimeError("other")
        @pytest.mark.guards("short-column")
        def test_remedy(): assert "pytest" in __import__("sys").modules
        @pytest.mark.isolated(env={"ONE_OF_MINE": "1"})
        def test_variable(): assert os.environ["ONE_OF_MINE"] == "1"
        @pytest.mark.isolated
        def test_no_variable(): assert "ONE_OF_MINE" not in os.environ
        @pytest.mark.needs("apex")
        def test_needs(): assert 0
        def test_pid(): assert os.getpid() == PID
        PID = os.getpid()
    """
    result = run(body, "--rl-inline", "-v")
    result.assert_outcomes(failed=1, passed=4, skipped=1)
    result.stdout.fnmatch_lines(["*test_act CHANGED*", "*test_remedy HELD*", "*changed 1/1*held 1/1*"])


def test_warnings_can_be_errors_in_contained_tests(run, pytester):
    pytester.makeini("[pytest]\nfilterwarnings = error")
    body = "import pytest, warnings\n@pytest.mark.isolated\ndef test_warns(): warnings.warn('careful')\n"
    result = run(body + "@pytest.mark.isolated\ndef test_quiet(): pass")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*UserWarning: careful*"])


def test_contained_tests_accept_strict_markers_and_config(run, pytester):
    pytester.makeini("[pytest]\naddopts = --strict-markers --strict-config\nmarkers = mine: of my own")
    body = "import pytest\npytestmark = [pytest.mark.isolated, pytest.mark.mine]\ndef test_it(): pass"
    run(body).assert_outcomes(passed=1)


def test_uses_basetemp_and_keeps_folders_of_failed_tests(run, pytester, tmp_path):
    body = """
        import pytest
        pytestmark = pytest.mark.isolated(group="g")
        def test_fails(tmp_path): (tmp_path / "left").write_text("by a failed test"); assert 0
        def test_passes(tmp_path): (tmp_path / "left").write_text("by a passed test")
        def test_dies(tmp_path): (tmp_path / "left").write_text("by a dead test"); import os; os.abort()
    """
    run(body, f"--basetemp={tmp_path}/base").assert_outcomes(failed=2, passed=1)
    left = {path.resolve().read_text() for path in (tmp_path / "base").glob("*/*/left")}
    assert left == {"by a dead test", "by a failed test", "by a passed test"}
    pytester.makeini("[pytest]\ntmp_path_retention_policy = failed")
    run(body, f"--basetemp={tmp_path}/other").assert_outcomes(failed=2, passed=1)
    left = {path.resolve().read_text() for path in (tmp_path / "other").glob("*/*/left")}
    assert left == {"by a dead test", "by a failed test"}


def test_durations_include_waiting(run, pytester):
    (pytester.path / "slow_to_import.py").write_text("import time\ntime.sleep(1.5)\n")
    body = "import pytest, slow_to_import\n@pytest.mark.isolated(fresh=True)\ndef test_it(): pass"
    result = run(body, "--durations=1", "-vv")
    line = next(line for line in result.outlines if " setup " in line and "test_it" in line)
    assert float(line.split("s ")[0]) > 1.4


def test_log_file_belongs_to_the_pytest_process(run, pytester):
    body = (
        "import pytest, logging\n@pytest.mark.isolated\ndef test_it(): logging.getLogger('x').warning('in a child')\n"
    )
    body += "def test_here(): logging.getLogger('x').warning('in pytest')"
    run(body, "--log-file=log.txt").assert_outcomes(passed=2)
    assert (pytester.path / "log.txt").read_text().strip().endswith("in pytest")


SUBTESTS = """
from types import FunctionType
import pytest, unittest

@pytest.mark.guards("short-column")
def test_remedy(subtests):
    for number in range(4):
        with subtests.test(number=number):
            assert number % 2 == 0, f"part {number}"

test_act = pytest.mark.reproduces("short-column")(FunctionType(test_remedy.__code__, globals()))

@pytest.mark.isolated
class Test(unittest.TestCase):
    def test_unittest(self):
        for number in range(2):
            with self.subTest(number=number):
                self.assertEqual(number, 0)
"""


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="subtests came with pytest 9")
def test_failing_subtest_fails_its_test_once(run, short_column):
    result = run(SUBTESTS, "-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*SUBFAILED*", "*Test::test_unittest FAILED*"])
    result.stdout.fnmatch_lines(["*AssertionError: part 1*", "*another failed subtest*", "*part 3*"])
    result.stdout.fnmatch_lines(["*changed 1/1*regressed 1/1*"])


def test_runs_without_optional_plugins_of_pytest(run):
    off = [
        word
        for name in ("debugging", "setuponly", "setupplan", "cacheprovider", "tmpdir", "terminal", "logging")
        for word in ("-p", f"no:{name}")
    ]
    result = run("import pytest\n@pytest.mark.isolated\ndef test_it(): assert 1 == 1", *off, "--junitxml=seen.xml")
    assert result.ret == pytest.ExitCode.OK, result.stderr.str()
