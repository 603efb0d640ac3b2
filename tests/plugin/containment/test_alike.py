"""A contained test reports what it would report in pytest's own process, in every supported pytest."""

from __future__ import annotations

import json
import re

import pytest

KINDS = """
import logging, sys, unittest, warnings
import pytest

pytestmark = [MARK]

def test_pass(): pass
def test_comparison(): assert [1, 2, 3] == [1, 2, 4]
def test_long_comparison(): assert {"loss": 0.25, "kl": list(range(30))} == {"loss": 0.5, "kl": list(range(30))}
def test_text(): assert "a\\nb\\nc" == "a\\nx\\nc"
def test_message(): assert 1 > 2, "the message"
def test_exception(): raise ValueError("in two\\nlines")
def test_skip(): pytest.skip("not here")
@pytest.mark.skipif(True, reason="never")
def test_skip_by_marker(): pass
def test_xfail_from_within(): pytest.xfail("known too")
@pytest.mark.xfail(reason="known")
def test_xfail(): assert 1 == 2
@pytest.mark.xfail
def test_xpass(): pass
@pytest.mark.xfail(strict=True, reason="known")
def test_xpass_strict(): pass
@pytest.mark.xfail(raises=KeyError)
def test_xfail_of_another_kind(): raise ValueError("no KeyError")
def test_warning(): warnings.warn("careful")
def test_own_warning():
    class Special(UserWarning): pass
    warnings.warn("careful", Special)
def test_output():
    print("to stdout")
    logging.getLogger("x").warning("to the log")
    assert 0
@pytest.fixture
def no_set_up(): raise RuntimeError("not set up")
def test_set_up(no_set_up): pass
@pytest.fixture
def no_teardown():
    yield
    raise RuntimeError("not torn down")
def test_teardown(no_teardown): pass
def test_fixture_that_is_not_there(no_such_fixture): pass
@pytest.mark.parametrize("value", [1, None, "ä"])
def test_parameter(value): assert value
def test_capsys(capsys):
    print("seen")
    assert capsys.readouterr() == ("seen\\n", "")
def test_capfd(capfd):
    print("seen")
    assert capfd.readouterr().out == "seen\\n"
def test_caplog(caplog):
    logging.getLogger("x").warning("seen")
    assert caplog.messages == ["seen"]
def test_recwarn(recwarn):
    warnings.warn("seen")
    assert len(recwarn) == 1
def test_monkeypatch(monkeypatch):
    monkeypatch.setattr(sys, "platform", "elsewhere")
    assert sys.platform == "elsewhere"
def test_property(record_property): record_property("loss", 0.5)
def test_tmp_path(tmp_path):
    (tmp_path / "kept").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
class Test(unittest.TestCase):
    def test_unittest(self): self.assertEqual([1, 2], [1, 3])
    def test_unittest_skip(self): self.skipTest("not here")
"""

# One line a report, and one a warning: what somebody can see of it.
CONFTEST = """
import json

def pytest_configure(config):
    global in_child
    in_child = hasattr(config, "workerinput")

def _write(*what):
    with open("child.jsonl" if in_child else "seen.jsonl", "a") as file:
        file.write(json.dumps(what) + "\\n")

def pytest_runtest_logreport(report):
    properties = [pair for pair in report.user_properties if not pair[0].startswith("rlregress_")]
    _write("report", report.nodeid, report.when, report.outcome, getattr(report, "wasxfail", None),
           report.longreprtext, properties, [s for s in report.sections if "teardown" not in s[0]])

def pytest_warning_recorded(warning_message, when, nodeid, location):
    if when == "runtest":
        _write("warning", nodeid, warning_message.category.__name__, str(warning_message.message))
"""


@pytest.mark.parametrize("options", [(), ("-W", "error"), ("-v", "--tb=short")], ids=["default", "errors", "short"])
def test_reports_and_warnings_are_those_of_pytests_own_process(run, pytester, options):
    pytester.makeconftest(CONFTEST)
    marks = {"test_own": "", "test_contained": 'pytest.mark.isolated(group="kinds")'}
    result = run({name: KINDS.replace("MARK", mark) for name, mark in marks.items()}, *options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    told = (pytester.path / "seen.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in told if "test_own.py" in line]
    by_name = {(line[1].partition("::")[2], line[2]): line for line in lines if line[0] == "report"}
    assert "At index 2 diff: 3 != 4" in by_name["test_comparison", "call"][5]  # else nothing was explained in either
    texts = [re.sub(r"0x[0-9a-f]+|/\S+/tmp_\S+|fixture 'no_such_fixture'(?s:.*)", "…", line) for line in told]
    own = [text for text in texts if "test_own.py" in text]
    contained = [text.replace("test_contained", "test_own") for text in texts if "test_contained.py" in text]
    if options != ("-W", "error"):
        assert any("careful" in text for text in own if text.startswith('["warning"'))
    # A warning of a class of the test's own arrives as a UserWarning that names it.
    own = [
        re.sub(r'"Special", "careful"', '"UserWarning", "test_own.test_own_warning.<locals>.Special: careful"', text)
        for text in own
    ]
    # Warnings of a test come before its reports from a child, and after them in pytest itself.
    for one, other in zip(sorted(contained), sorted(own), strict=True):
        assert one == other


def test_output_of_both_streams_is_shown_in_the_order_it_was_written(run):
    """Under --capture=sys, too: a child's descriptors are its own."""
    body = """
        import os, subprocess, sys, pytest
        @pytest.mark.isolated
        def test_it():
            print("one", flush=True); print("two", file=sys.stderr, flush=True)
            os.write(sys.stdout.fileno(), b"three\\n"); subprocess.run(["echo", "four"])
            assert 0
    """
    run(body, "--capture=sys").stdout.fnmatch_lines(["*Captured stdout call*", "one", "two", "three", "four"])


@pytest.mark.parametrize("option", ["-s", "--capture=tee-sys"])
def test_output_is_shown_live_and_still_captured(run, short_column, option):
    body = """
        import pytest
        @pytest.mark.reproduces("short-column")
        def test_it():
            print("a line of output")
            raise RuntimeError("other")
    """
    result = run(body, option)
    shown = result.stdout.str().count("a line of output")
    assert shown == {"-s": 2, "--capture=tee-sys": 3}[option]  # as it is printed, [in the report], in the source
