"""Every scenario's test says where its act begins, so that what fails before it gives no verdict."""

from __future__ import annotations

import ast

import acts
import pytest
from installed import CHECKOUT

FILES = sorted((CHECKOUT / "scenarios").rglob("test_*.py"))
#: The area whose acts are imports.
IMPORTS_ACT = "dependencies"
FILE = """
import copy
import pytest
from helpers import prepare, drive
from pytest_rlregress.failures.act import act
GIVEN = [1, 2]

@pytest.mark.{side}("short-column")
@pytest.mark.parametrize("kind", [1])
def test_it(kind, subject, manager, tmp_path, monkeypatch):
    {body}
"""
REFUSED = {
    "two calls into the stack": "batch = prepare()\n    drive(batch)",
    "a call as an argument of another": "drive(prepare())",
    "an import of the stack": "import trl\n    trl.train()",
    "an import of a part of it": "from verl.utils import fs\n    fs.copy(kind)",
    "a fixture's method before": "batch = manager.batch()\n    drive(batch)",
    "a patched stack": "monkeypatch.setattr(manager, 'save', None)\n    drive(kind)",
    "an import by name": "import importlib\n    trl = importlib.import_module('trl')\n    drive(trl)",
    "an import inside of the act": "with act():\n        import trl\n        trl.train()",
    "a preparation in a loop": "for one in GIVEN:\n        drive(prepare(one))",
}
ALLOWED = {
    "one call": "drive(kind)",
    "one call on what a fixture gave": "manager.save(tmp_path)",
    "a call on the result of the act": "assert drive(kind).item() == 1",
    "Python's own before": "import json\n    before = copy.deepcopy(GIVEN)\n    drive(json.dumps(before).strip())",
    "preparations before the form": "import trl\n    batch = prepare()\n    with act():\n        drive(batch)",
    "the form with another context": "one = prepare()\n    with act(), pytest.raises(ValueError):\n        drive(one)",
    "the form inside of another block": "with prepare() as run:\n        with act():\n            drive(run)",
}


def fault(body, side="reproduces"):
    [test] = acts.find_sided(FILE.format(side=side, body=body))
    return acts.find_fault(test)


@pytest.mark.parametrize("why", REFUSED)
def test_refuses_a_test_that_hides_its_act_behind(why):
    assert fault(REFUSED[why]) in (acts.MISSING, acts.HIDDEN)
    assert fault(REFUSED[why], "guards") in (acts.MISSING, acts.HIDDEN)


@pytest.mark.parametrize("why", ALLOWED)
def test_accepts(why):
    assert fault(ALLOWED[why]) == fault(ALLOWED[why], "guards") == ""


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ("made = subject(GIVEN)\n    drive(made)\n    assert manager.read() == made", False),
        ("assert drive(subject(GIVEN)) == 1", False),
        ("batch = prepare()\n    assert drive(subject(batch)) == 1", True),
        ("assert subject(prepare()) == 1", True),
    ],
)
def test_guard_may_begin_with_the_remedy(body, missing):
    assert bool(fault(body, "guards")) == missing


def test_finds_the_tests_that_a_whole_file_or_a_name_marks():
    text = "pytestmark = [pytest.mark.needs('verl'), pytest.mark.guards('a')]\ndef test_one(): pass\n"
    assert [one.side for one in acts.find_sided(text)] == ["guards"]
    text = "ACT = pytest.mark.reproduces('a')\n@ACT\ndef test_one(): pass\ndef test_other(): pass\n"
    assert [(one.side, one.function.name) for one in acts.find_sided(text)] == [("reproduces", "test_one")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_scenario_says_where_its_act_begins(path):
    text = path.read_text(encoding="utf-8")
    allowed = {"", acts.HIDDEN} if path.parents[1].name == IMPORTS_ACT else {""}
    faults = {test.function.name: acts.find_fault(test) for test in acts.find_sided(text)}
    assert {name: fault for name, fault in faults.items() if fault not in allowed} == {}


def test_every_sided_test_of_the_scenarios_is_looked_at():
    found = [test for path in FILES for test in acts.find_sided(path.read_text(encoding="utf-8"))]
    assert len(found) > 440
    assert {test.side for test in found} == {"reproduces", "guards"}
    assert sum(isinstance(node, ast.With) for test in found for node in ast.walk(test.function)) > 350
