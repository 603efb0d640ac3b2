"""Other people's plugins beside this one: docs/plugins.md says what they do for contained tests.

Where they are not installed their tests are skipped; `make matrix` has an environment with all of them.
"""

from __future__ import annotations

import base64
import json
import os
import re

import needs
import pytest

FLAKY = """
import pathlib, pytest

@pytest.fixture
def tries(request):
    file = pathlib.Path(f"tries-{request.node.name}")
    file.write_text(str(int(file.read_text()) + 1 if file.exists() else 1))
    return int(file.read_text())

@pytest.mark.guards("short-column")
def test_guard(tries): assert tries == 3

@pytest.mark.reproduces("short-column")
def test_act(tries): assert tries != 1, "other"

@pytest.mark.isolated
def test_dies(tries): tries > 1 or __import__("os").abort()

@pytest.mark.isolated
@pytest.mark.flaky(reruns=1)
def test_marked(tries): assert tries == 2

@pytest.mark.isolated
def test_never(tries): assert 0
"""


@needs.plugin("pytest_rerunfailures")
@pytest.mark.parametrize("options", [("-p", "no:xdist"), ("-n2", ".")], ids=["alone", "xdist"])
def test_guards_are_rerun_and_acts_are_not(run, short_column, options):
    result = run(FLAKY, "--reruns=2", "-v", *options)
    counts = result.parseoutcomes()
    assert (counts["passed"], counts["failed"], counts["rerun"]) == (3, 2, 2 + 1 + 1 + 2)
    shown = result.stdout.str()
    for name, verdict in {"test_guard": "HELD", "test_act": "CHANGED", "test_never": "FAILED"}.items():
        assert re.search(rf"{name}.* {verdict}|{verdict} .*{name}", shown), shown


@needs.plugin("pytest_rerunfailures")
def test_record_shows_reruns(run, pytester, short_column):
    run(FLAKY, "--reruns=2", "--rl-record-dir=records", "-k", "test_guard or test_dies", "test_it.py")
    (record,) = pytester.path.glob("records/*.json")
    tests = {test["name"].rpartition("::")[2]: test for test in json.loads(record.read_text())["results"]["tests"]}
    assert {name: (test["retries"], test["flaky"]) for name, test in tests.items()} == {
        "test_guard": (2, True),
        "test_dies": (1, True),
    }


@needs.plugin("pytest_rerunfailures")
def test_reruns_only_matching_failures(run, short_column):
    result = run(FLAKY, "--reruns=2", "--only-rerun=assert . == 3", "-k", "test_guard or test_never")
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "rerun": 2, "deselected": 3}


HANGS = """
import time, pytest

@pytest.mark.isolated
def test_hangs(): time.sleep(60)

@pytest.mark.isolated
@pytest.mark.timeout(30)
def test_own_limit(): time.sleep(1.5)

@pytest.mark.isolated(timeout=20)
def test_limit_of_the_marker(): time.sleep(1.5)

def test_in_this_process(): time.sleep(60)
"""


@needs.plugin("pytest_timeout")
@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_time_limit_is_watched_from_outside(run, method):
    result = run(HANGS, "--timeout=1", f"--timeout-method={method}", "-k", "not in_this_process")
    result.assert_outcomes(failed=1, passed=2, deselected=1)
    result.stdout.fnmatch_lines(["no end after 1 s", "*stacks of the contained process*"])


@needs.plugin("pytest_timeout")
def test_tests_in_this_process_keep_the_plugins_own_limit(run):
    result = run(HANGS, "--timeout=1", "-k", "in_this_process or marker")
    result.assert_outcomes(failed=1, passed=1, deselected=2)
    result.stdout.fnmatch_lines(["*Timeout*1.0s*"])


NUMBERS = """
import random, pytest

pytestmark = [MARK]

@pytest.mark.parametrize("number", range(6))
def test_draw(number):
    with open("drawn", "a") as file:
        file.write(f"{number} {random.random()}\\n")
"""


@needs.plugin("pytest_randomly")
def test_order_and_seeds_are_those_of_randomly(run, pytester):
    def drawn(mark, *options):
        (pytester.path / "drawn").unlink(missing_ok=True)
        run(NUMBERS.replace("MARK", mark), "-p", "randomly", "--randomly-seed=7", *options).assert_outcomes(passed=6)
        return (pytester.path / "drawn").read_text().splitlines()

    own = drawn("")
    assert [line[0] for line in own] != sorted(line[0] for line in own)
    assert drawn("pytest.mark.isolated") == own
    assert drawn('pytest.mark.isolated(group="g")') == own
    assert sorted(drawn("pytest.mark.isolated", "-n2")) == sorted(own)


IN_TURN = """
import os, pytest

pytestmark = pytest.mark.isolated(group=__name__[-1])

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    with open("children", "a") as file:
        file.write(f"{__name__} {os.getpid()}\\n")
    assert number != 1 or "AGAIN" in os.environ
"""


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("-p", "cacheprovider", "--ff"), 6),
        pytest.param(("-p", "cacheprovider", "--stepwise"), 5, marks=pytest.mark.slow),
        pytest.param(("-p", "randomly", "--randomly-seed=3"), 6, marks=needs.plugin("pytest_randomly")),
    ],
    ids=["failed-first", "stepwise", "randomly"],
)
def test_tests_of_one_child_stay_together_whoever_orders_them(run, pytester, monkeypatch, options, count):
    first = "cacheprovider" in options and run({"test_a": IN_TURN, "test_b": IN_TURN}, *options)
    monkeypatch.setenv("AGAIN", "1")
    (pytester.path / "children").unlink(missing_ok=True)
    run({} if first else {"test_a": IN_TURN, "test_b": IN_TURN}, *options, "--hw=cpu", ".").assert_outcomes(
        passed=count
    )
    ran = (pytester.path / "children").read_text().splitlines()
    assert len(ran) == count
    assert len(set(ran)) == 2, "a child for each group"


COVERED = """
def share(number):
    if number > 9:
        return 0
    if number > 5:
        return 1
    return 2
"""
COVERS = """
import os, pytest
pytestmark = pytest.mark.isolated(group="g")
def test_covers():
    from covered import share
    assert share(1) == 2
def test_dies():
    os.abort()
def test_covers_more():
    from covered import share
    assert share(7) == 1
"""


@needs.plugin("pytest_cov")
@pytest.mark.parametrize("options", [("-p", "no:xdist"), ("-n2",)], ids=["alone", "xdist"])
def test_coverage_includes_children(run, pytester, options):
    options = ("--cov=covered", "--cov-report=term-missing", *options)
    result = run({"test_it": COVERS, "covered": COVERED}, *options)
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["covered.py * 1 *%* 3"])  # one statement is missing
    assert [path.name for path in pytester.path.glob(".coverage*")] == [".coverage"]


@needs.plugin("pytest_html")
def test_html_report_includes_extras_of_a_child(run, pytester):
    body = """
        import pytest, pytest_html
        @pytest.mark.isolated
        def test_it(extras, metadata):
            extras.append(pytest_html.extras.text("a text from a child"))
            assert metadata["Python"] and 0, "as documented"
    """
    run(body, "--html=report.html", "--self-contained-html").assert_outcomes(failed=1)
    report = (pytester.path / "report.html").read_text()
    assert "as documented" in report
    assert "test_it.py::test_it" in report
    assert base64.b64encode(b"a text from a child").decode() in report  # the source in the traceback isn't an extra


@needs.plugin("pytest_sugar")
def test_verdicts_are_shown_beside_other_reporters(run, short_column):
    result = run(FLAKY, "--force-sugar", "-k", "test_act or test_guard")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED on cpu: short-column: 1 of 1 guard regressed, 1 of 1 reproduction changed."])


NEEDY = """
def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.needed = config.workerinput["what only its own controller sends"]
"""


@pytest.fixture
def installed(pytester, monkeypatch):
    """Install a plugin: ``installed(name, source)``."""
    site = pytester.mkdir("site")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

    def installed(name, source):
        (site / f"{name}_plugin.py").write_text(source)
        info = site / f"pytest_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pytest-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {name}_plugin\n")

    return installed


def test_plugin_that_fails_in_a_child_is_left_out_and_named(run, installed):
    installed("needy", NEEDY)
    body = "import pytest\npytestmark = pytest.mark.isolated\ndef test_one(): pass\ndef test_two(): assert 1 == 2"
    result = run(body)
    result.assert_outcomes(passed=1, failed=1)
    assert result.stdout.str().count("contained tests run without the plugin needy, which fails in their process") == 1
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])


THREADED = """
import sys, threading, time, pytest
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

@pytest.fixture
def threaded():
    return threading.active_count()
"""
FORKED = """
import os, sys, pytest

@pytest.mark.isolated
def test_it():
    assert "threaded_plugin" not in sys.modules
"""
FORKED_SAFELY = """
import os, pytest

@pytest.mark.isolated
def test_it(threaded):
    assert os.getppid() and threaded == 2, "the thread is the child's own"
"""


def test_warm_server_does_not_import_disabled_plugins(run, installed):
    installed("threaded", "")  # with a thread no test would be forked from that server
    run(FORKED, "-p", "no:threaded").assert_outcomes(passed=1)


def test_plugin_that_starts_a_thread_is_kept_out_of_the_forking_process(run, installed):
    installed("threaded", THREADED)
    run(FORKED_SAFELY).assert_outcomes(passed=1)


TELLS_ITS_CONTROLLER = """
def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["seen"] = session.testscollected
"""


def test_plugin_messages_reach_the_controller(run, installed):
    installed("telling", TELLS_ITS_CONTROLLER)
    run("import pytest\n@pytest.mark.isolated\ndef test_one(): pass").assert_outcomes(passed=1)


def test_conftest_that_fails_in_a_child_is_a_clear_error(run, pytester):
    pytester.makeconftest(NEEDY)
    result = run("import pytest\n@pytest.mark.isolated\ndef test_it(): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*KeyError: 'what only its own controller sends'*"])
