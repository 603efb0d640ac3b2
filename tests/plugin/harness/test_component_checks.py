"""Components are checked once, before the tests that need them; a broken one blocks them and fails the run."""

from __future__ import annotations

import ast
import json
import re
import xml.etree.ElementTree as ET

import pytest
from made_failures import write_failures

from pytest_rlregress.failures.catalogue import SHIPPED
from pytest_rlregress.harness import component_checks
from pytest_rlregress.stack import COMPONENTS, PARTS

NEEDS = """
import pytest

@pytest.mark.needs("{component}")
@pytest.mark.parametrize("number", range(3))
def test_it(number):
    pass
"""
BREAKS = {
    "an-error": ('raise RuntimeError("no Arrow here")', "RuntimeError: no Arrow here"),
    "a-signal": ("import os; os.abort()", "died of SIGABRT"),
}
DOCUMENTED = """
id = "no-arrow"
title = "t"
seen_on = "any"
components = { datasets = "any" }
cause = "c"
remedy = "r"

[[signature]]
says = ["no Arrow here"]
"""
SIDES = """
import pytest

@pytest.mark.reproduces("no-arrow")
def test_act():
    import datasets

@pytest.mark.guards("no-arrow")
def test_remedy():
    pass
"""


IMPORTING = """
import importlib
import pytest

@pytest.mark.guards("no-arrow")
def test_remedy():
    importlib.import_module("{}")
"""
TOUCHING = """
import pytest

@pytest.mark.guards("touched")
def test_remedy():
    import datasets; assert 0
"""


@pytest.fixture
def broken(pytester, monkeypatch):
    """``broken(code)``: what ``import datasets`` does, or that of another package, in this test's processes."""

    def broken(code, name="datasets"):
        folder = pytester.mkdir("shadow") / name
        folder.mkdir()
        (folder / "__init__.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(folder.parent))

    return broken


@pytest.mark.parametrize(("how", "workers"), [("an-error", ()), ("a-signal", ("-n2",))])
def test_one_broken_component_is_one_failure(run, broken, pytester, how, workers):
    code, evidence = BREAKS[how]
    broken(code)
    files = {name: NEEDS.format(component="datasets") for name in ("test_one", "test_other")}
    result = run(files, "--junitxml=junit.xml", "-rs", "-p", "no:rerunfailures", *workers)
    result.assert_outcomes(failed=1, skipped=6)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*datasets is broken: {evidence}*"])
    result.stdout.fnmatch_lines(
        [f"- `datasets`: broken: `{evidence}*", "FAILED on *: broken here: datasets*", "*datasets that works (6).*"]
    )
    cases = ET.parse(pytester.path / "junit.xml").findall(".//testcase")
    [failed] = [case for case in cases if case.find("failure") is not None]
    assert failed.get("name") == component_checks.check_of("datasets")
    assert evidence in (failed.find("failure").text or "") + failed.find("failure").get("message")


SHARED = """
import os
from pathlib import Path

import pytest

@pytest.mark.parametrize(
    "component",
    [
        *(pytest.param(name, marks=pytest.mark.needs(name)) for name in ("numpy", "tokenizers")),
        pytest.param("both", marks=pytest.mark.needs("tokenizers", "numpy")),
    ],
)
def test_it(component):
    Path(f"{component}.pid").write_text(str(os.getpid()))
"""


def test_a_check_between_two_tests_leaves_their_process_running(run, pytester):
    run(SHARED).assert_outcomes(passed=3)
    pids = {file.read_text() for file in pytester.path.glob("*.pid")}
    assert len(pids) == 1, "the check of the second component ended the process of the first test"


def test_working_components_are_counted_but_are_not_tests(run):
    result = run(NEEDS.format(component="tokenizers"), "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["working: tokenizers *", "*3 passed, 1 components working in*"])


def test_component_is_checked_after_its_needs_and_blames_them(run, broken):
    broken("raise ImportError('numpy of another build')", name="numpy")
    result = run(NEEDS.format(component="datasets"))
    result.assert_outcomes(failed=1, skipped=3)
    result.stdout.fnmatch_lines(["- `numpy`: broken: `ImportError: numpy of another build`", "*numpy that works (3).*"])
    result.stdout.no_fnmatch_line("datasets*broken*")


@pytest.mark.parametrize(
    ("code", "verdicts", "touching", "failed"),
    [
        ('raise RuntimeError("no Arrow here")', ["reproduced 1/1", "held 1/1"], "blocked", True),
        ('raise RuntimeError("something else")', ["blocked 1/1", "held 1/1"], "blocked", True),
        (
            "class Dataset:\n    from_dict = staticmethod(lambda d: [None, {'ids': 2}])",
            ["absent 1/1", "held 1/1"],
            "regressed",
            False,
        ),
    ],
    ids=["documented", "otherwise", "working"],
)
def test_a_component_broken_as_documented_blocks_nothing(run, broken, pytester, code, verdicts, touching, failed):
    """A guard need not name what it touches: when it fails, the components of its failure are checked."""
    broken(code)
    folder = pytester.mkdir("mine")
    write_failures(folder, DOCUMENTED + DOCUMENTED.replace("no-arrow", "touched").replace("no Arrow", "no pandas"))
    (folder / "test_mine.py").write_text(SIDES)
    (folder / "test_touching.py").write_text(TOUCHING)
    result = run({}, "mine", f"--override-ini=rlregress_scenarios={folder}", "-v", "--rl-record-dir=records")
    result.stdout.fnmatch_lines_random([f"| no-arrow*{verdicts[0]}*{verdicts[1]}*", f"| touched*{touching} 1/1*"])
    assert result.ret == 1
    [record] = (pytester.path / "records").glob("*.json")
    tests = json.loads(record.read_text())["results"]["tests"]
    checked = [test for test in tests if test.get("extra", {}).get("component") == "datasets"]
    assert [test["status"] for test in checked] == ["failed" if failed else "passed"]


@pytest.mark.parametrize(("imported", "verdict"), [("trl.trainer.grpo_trainer", "blocked"), ("trl.other", "regressed")])
def test_a_test_that_fails_by_the_import_of_a_broken_part_is_blocked(pytester, run, monkeypatch, imported, verdict):
    """The trainer's check and the test fail by the same import: the test says nothing about its failure."""
    installed = pytester.mkdir("site-packages")
    trainer = installed / "trl" / "trainer"
    trainer.mkdir(parents=True)
    (trainer.parent / "__init__.py").write_text("__version__ = '1'")
    (trainer.parent / "other.py").write_text("from json import nothing_else")
    (trainer / "__init__.py").touch()
    (trainer / "grpo_trainer.py").write_text("from json import nothing")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    folder = pytester.mkdir("mine")
    write_failures(folder, DOCUMENTED.replace("datasets", "trl"))
    (folder / "test_mine.py").write_text(IMPORTING.format(imported))
    result = run({}, "mine", f"--override-ini=rlregress_scenarios={folder}", "-v")
    result.stdout.fnmatch_lines([f"| no-arrow*{verdict} 1/1*"])


def test_a_debugger_in_pytests_own_process_checks_nothing(run, broken):
    broken("")
    result = run(NEEDS.format(component="datasets"), "--rl-inline")
    result.assert_outcomes(passed=3)


def test_checks_can_run_alone(run):
    result = run({}, "--pyargs", "pytest_rlregress.harness.component_checks", "-k", "tensordict")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("name", [*COMPONENTS, *PARTS])
def test_every_component_and_part_has_a_check(name):
    function, _, parameter = component_checks.check_of(name).partition("[")
    assert callable(getattr(component_checks, function))
    assert parameter.removesuffix("]") in ("", name)


# -- the shipped scenarios ---------------------------------------------------------------------------------------------


def reached(nodes, named):
    """All that is below these nodes, and below what they name: functions, fixtures and variables of their file."""
    found, names = [below for node in nodes for below in ast.walk(node)], set()
    for node in found:  # grows meanwhile
        name = getattr(node, "id", getattr(node, "arg", getattr(node, "value", None)))
        if name in named and name not in names:
            names.add(name)
            found += ast.walk(named[name])
    return found


def lacking(source):
    """The tests of a file that start a part of the stack by themselves and do not say that they need it, with it."""
    body = ast.parse(source).body
    named = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    named |= {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
    everywhere = [named["pytestmark"]] if "pytestmark" in named else []
    for test in body:
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test"):
            used = reached([test], named)
            calls = {ast.unparse(node.func) for node in used if isinstance(node, ast.Call)}
            fixtures = {node.arg for node in used if isinstance(node, ast.arg)}
            marks = [node for node in reached([*test.decorator_list, *everywhere], named) if isinstance(node, ast.Call)]
            marks = [mark for mark in marks if ast.unparse(mark.func) == "pytest.mark.needs"]
            needed = [one.value for mark in marks for one in mark.args if isinstance(one, ast.Constant)]
            for part in PARTS:
                module = part.replace("-", "_")
                if f"{module}.start" in calls and module not in fixtures and part not in needed:
                    yield test.name, part


def test_shipped_test_needs_each_part_it_starts():
    """Else its start is part of the act, and an engine that starts nowhere fails each of them."""
    files = {file: file.read_text(encoding="utf-8") for file in sorted(SHIPPED.rglob("test_*.py"))}
    assert [(file.name, *found) for file, text in files.items() for found in lacking(text)] == []
    emptied = [re.sub(r'needs\((?:"[^"]*"|[^")])*\)', "needs()", text) for text in files.values()]
    unsaid = {part for text in emptied for _, part in lacking(text)}
    assert {"ray-cluster", "vllm-engine"} <= unsaid, "nothing would be found where the marker is missing"
