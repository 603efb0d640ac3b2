"""Annotations in GitHub's log: read back as GitHub's runner reads the lines of a step."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_failures import write_failures

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.harness import github_annotations as github

FAILURES = """
id = "short-column"
title = "A column is short"
seen_on = "H20"
components = {}
cause = "c"
remedy = "Pad it: 100% of the rows"
says = ["AssertionError: column {} is short"]
id = "long-column"
title = "A column is long"
seen_on = "H20"
components = {}
cause = "c"
remedy = "Cut it"
expected = "absent"
says = ["AssertionError: column {} is long"]
"""
MISSING = "nothing_of_that_name"
PARTS = (("%0D", "\r"), ("%0A", "\n"))
PROPERTY_PARTS = (*PARTS, ("%3A", ":"), ("%2C", ","))


def unescaped(text, parts):
    for escaped, character in (*parts, ("%25", "%")):
        text = text.replace(escaped, character)
    return text


def parsed(line):
    """Kind, properties and message of a workflow command; None for any other line.

    As https://github.com/actions/runner does it: TryParseV2 in src/Runner.Common/ActionCommand.cs.
    """
    line = line.lstrip()
    if not line.startswith("::") or "::" not in line[2:]:
        return None
    head, _, message = line[2:].partition("::")
    kind, _, given = head.partition(" ")
    pairs = (pair.strip().split("=", 1) for pair in given.strip().split(","))
    properties = {pair[0]: unescaped(pair[1], PROPERTY_PARTS) for pair in pairs if len(pair) == 2}
    return kind, properties, unescaped(message, PARTS)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x1b")).map(lambda text: f"x{text}x")


@EXAMPLES
@given(TEXT, TEXT, TEXT)
def test_a_command_is_one_line_that_reads_back(title, file, message):
    line = github.command("error", {"file": file, "title": title}, message)
    assert "\n" not in line
    assert "\r" not in line
    assert parsed(line) == ("error", {"file": file, "title": title}, message)


def test_strips_colours_and_escapes_invalid_text():
    assert github.command("error", {"title": "\ud800"}, "\x1b[31mred\x1b[0m") == "::error title=\\ud800::red"


@pytest.fixture
def annotated(run, pytester, monkeypatch):
    """Run test files; the annotations of the run, and under "" how it went."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))

    def annotated(files, *options):
        pytester.makeini("[pytest]\nrlregress_scenarios = catalogue\nxfail_strict = true\n")
        write_failures(pytester.mkdir("catalogue"), FAILURES)
        files = {name: f"import os, pytest\n{inspect.cleandoc(body)}" for name, body in files.items()}
        annotated.run = run(files, "-p", "no:cacheprovider", *options)
        return [found for found in map(parsed, annotated.run.outlines) if found]

    return annotated


SIDED = """
@pytest.fixture
def left_open():
    yield
    raise ValueError("left, open: 5%\\nof it")

@pytest.mark.reproduces("short-column")
@pytest.mark.parametrize("number", range(4))
def test_other_way(number):
    raise KeyError("column")

@pytest.mark.guards("short-column")
def test_dies():
    os.abort()

@pytest.mark.guards("short-column")
def test_holds(left_open):
    pass

@pytest.mark.hw("cpu")
@pytest.mark.guards("short-column")
def test_promised():
    pytest.skip("no room")

@pytest.mark.reproduces("short-column")
def test_gone():
    len("")

@pytest.mark.reproduces("long-column")
def test_gone_as_expected():
    len("")

@pytest.mark.needs("windows")
@pytest.mark.guards("long-column")
def test_elsewhere():
    pass

def test_plain():
    assert 1 == 2, "not equal"

@pytest.mark.xfail(reason="known")
def test_passes_after_all():
    pass
"""


@pytest.mark.parametrize("workers", [pytest.param((), marks=pytest.mark.slow), ("-n2",)], ids=["alone", "xdist"])
def test_annotates_each_failure_once_with_its_remedy_and_place(annotated, workers):
    found = annotated({"test_it": SIDED, "test_broken": f"import {MISSING}"}, "--hw=cpu", *workers, ".")

    lines = Path("test_it.py").read_text().splitlines()

    def place_of(test):
        if test.endswith(".py"):
            return {"file": test, "line": "1"}
        at = next(number for number, line in enumerate(lines, 1) if line.startswith(f"def {test}("))
        while lines[at - 2].startswith("@"):
            at -= 1
        return {"file": "test_it.py", "line": str(at)}

    summary = Path("summary.md").read_text()
    assert summary.startswith("## FAILED on cpu: short-column: 1 of 3 guards crashed, 4 of 5 reproductions changed, ")
    assert "### Not as expected\n\n- short-column: 1 of 3 guards crashed: `died of SIGABRT (Aborted)`\n" in summary
    remedy = "remedy: Pad it: 100% of the rows"
    expected = [
        ("error", "changed: short-column", "test_other_way", f"no documented signature: KeyError: 'column'\n{remedy}"),
        ("error", "crashed: short-column", "test_dies", f"died of SIGABRT (Aborted)\n{remedy}"),
        ("error", "error: short-column", "test_holds", f"ValueError: left, open: 5%\n{remedy}"),
        ("error", "failed: test_plain", "test_plain", "AssertionError: not equal\nassert 1 == 2"),
        ("error", "failed: test_passes_after_all", "test_passes_after_all", "[XPASS(strict)] known"),
        ("error", "error: test_broken.py", "test_broken.py", f"ModuleNotFoundError: No module named '{MISSING}'"),
        ("warning", "failed: short-column", "test_promised", f"no room\n{remedy}"),
        (
            "notice",
            "absent: short-column",
            "test_gone",
            f"the failing call did no harm, which was not expected on this stack\n{remedy}",
        ),
    ]

    def title_of(annotation):
        return annotation[1]["title"]

    ids = {"test_broken.py": "test_broken.py", "test_other_way": "test_it.py::test_other_way[0] and 3 more"}
    assert sorted(found, key=title_of) == sorted(
        (
            (kind, {"title": title, **place_of(test)}, f"{message}\n{ids.get(test, f'test_it.py::{test}')}")
            for kind, title, test, message in expected
        ),
        key=title_of,
    )


FAILS = """
@pytest.mark.isolated(group="g")
@pytest.mark.parametrize("number", range(12))
def test_fails(number):
    assert number < 0
"""


def test_last_annotation_lists_the_failures_beyond_the_limit(annotated):
    found = annotated({"test_it": FAILS})
    assert len(found) == 10
    assert found[8][1]["title"] == "failed: test_fails[8]"
    assert found[9] == (
        "error",
        {"title": "3 more"},
        "failed: test_fails[9]\nfailed: test_fails[10]\nfailed: test_fails[11]",
    )


def test_prints_no_annotations_outside_github(annotated, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert annotated({"test_it": FAILS}) == []
    annotated.run.assert_outcomes(failed=12)


def test_paths_are_relative_to_the_repository(annotated, pytester, monkeypatch):
    body = (
        "import pytest\n\n@pytest.mark.isolated\n@pytest.mark.parametrize('a', ['x/y'])\ndef test_fails(a): assert 0\n"
    )
    for folder in ("repository/scenarios", "site-packages"):
        Path(folder).mkdir(parents=True)
        Path(folder, f"test_{Path(folder).name[:4]}.py").write_text(body)
    Path("repository/linked").symlink_to("scenarios")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path / "repository"))
    found = annotated({}, "repository/linked", "site-packages")
    assert [properties for _, properties, _ in found] == [
        {"file": "scenarios/test_scen.py", "line": "3", "title": "failed: test_fails[x/y]"},
        {"title": "failed: test_fails[x/y]"},
    ]
    assert found[0][2].endswith("\ntest_scen.py::test_fails[x/y]")


def test_warns_of_a_hardware_run_without_a_hardware_test(annotated, two_cards):
    files = {"test_it": "def test_passes(): pass", "test_hw": "@pytest.mark.hw('h100')\ndef test_it(): pass"}
    [(kind, properties, _)] = annotated(files, two_cards, "test_it.py")
    assert kind == "warning"
    assert properties["title"].startswith("--hw=h100 ran no hardware test, so nothing was proved about this hardware")
