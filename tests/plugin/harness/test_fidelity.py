"""How real a test is: what its failure's entry and its marker say, and where that is shown."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter

import pytest
from made_failures import FAILURES, write_failures

from pytest_rlregress import cli
from pytest_rlregress.failures.catalogue import SHIPPED, load
from pytest_rlregress.failures.fidelity import FidelityError, marked_tests, of_test, summary

SIDED = """
import pytest
@pytest.mark.reproduces("short-column")
def test_act(): assert 0, "column x is short"
@pytest.mark.reproduces("short-column", fidelity="injected")
def test_put_in(): assert 0, "column x is short"
@pytest.mark.guards("short-column", fidelity="real")
def test_remedy(): pass
@pytest.mark.guards("short-column")
def test_remedy_with_something_else(record_property):
    record_property("rlregress_stand_ins", "a logical GPU")
@pytest.mark.guards("short-column")
@pytest.mark.needs("apex")
def test_elsewhere(): pass
"""


@pytest.mark.parametrize(
    ("of_failure", "marked", "stand_ins", "found"),
    [
        ("real", None, "", "real"),
        ("", None, "", ""),
        ("real", "injected", "", "injected"),
        ("injected", "real", "", "real"),
        ("real", None, "a logical GPU", "stand-in"),
        ("", None, "a logical GPU", "stand-in"),
        ("injected", None, "a logical GPU", "injected"),
    ],
)
def test_marker_overrides_the_entry_and_a_stand_in_overrides_real(of_failure, marked, stand_ins, found):
    assert of_test(of_failure, marked, stand_ins) == found


@pytest.mark.parametrize("marked", ["Real", "", "mock", 1])
def test_rejects_an_unknown_fidelity(marked):
    with pytest.raises(FidelityError, match="is not allowed; allowed: real, stand-in, injected"):
        of_test("real", marked)


@pytest.mark.parametrize(
    ("tests", "text"),
    [
        ({}, ""),
        ({"real": 3}, "real"),
        ({"injected": 1, "real": 3}, "real 3, injected 1"),
        ({"not said": 2, "stand-in": 4}, "stand-in 4, not said 2"),
        (Counter(real=3, injected=0), "real"),
    ],
)
def test_summarises_fidelities_by_count(tests, text):
    assert summary(tests) == text


@pytest.fixture
def entry_says(short_column, pytester):
    def entry_says(word):
        path = pytester.path / "mine" / "short_column" / "failure.toml"
        path.write_text(f'fidelity = "{word}"\n{path.read_text()}')

    return entry_says


@pytest.mark.parametrize("distributed", [pytest.param((), marks=pytest.mark.slow), ("-n2",)], ids=["alone", "xdist"])
def test_table_record_and_junit_show_the_fidelity(pytester, run, entry_says, distributed):
    entry_says("real")
    result = run(SIDED, "--hw=cpu", "test_it.py", "--rl-record-dir=records", "--junitxml=junit.xml", "-v", *distributed)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "| failure * reproduces * guards * fidelity * subject |",
            "| short-column * reproduced 2/2 * held 2/3 * real 2, stand-in 1, injected 1 *",
        ]
    )
    [path] = (pytester.path / "records").glob("*.json")
    tests = json.loads(path.read_text())["results"]["tests"]
    said = {test["name"].rpartition("::")[2]: test["extra"].get("fidelity") for test in tests}
    assert said == {
        "test_act": "real",
        "test_put_in": "injected",
        "test_remedy": "real",
        "test_remedy_with_something_else": "stand-in",
        "test_elsewhere": "real",
    }
    junit = {
        (case.get("name"), one.get("value"))
        for case in ET.parse(pytester.path / "junit.xml").iter("testcase")
        for one in case.iter("property")
        if one.get("name") == "rlregress_fidelity"
    }
    assert junit == set(said.items())


def test_handles_an_entry_without_fidelity_and_tests_that_did_not_run(run, pytester, short_column):
    write_failures(pytester.path / "mine", FAILURES.replace("short-column", "long-column"))
    body = SIDED.replace('needs("apex")\n', 'needs("apex")\n@pytest.mark.guards("long-column")\n')
    body = body.replace('@pytest.mark.guards("short-column")\n@pytest.mark.needs', "@pytest.mark.needs")
    result = run(body, "--hw=cpu", "test_it.py", "-k", "act or elsewhere", "-v")
    result.stdout.fnmatch_lines_random(
        ["| short-column *reproduced 1/1 *| - *| not said *", "| long-column * | unavailable * | -  *"]
    )


def test_marked_tests_are_read_without_an_import(tmp_path):
    (tmp_path / "test_it.py").write_text(f"import no_such_module\n{SIDED}")
    assert marked_tests(tmp_path, "short-column") == {"real": ["test_remedy"], "injected": ["test_put_in"]}
    assert marked_tests(tmp_path, "other") == {}


def test_no_marker_of_a_shipped_test_repeats_its_entry():
    for failure in load([SHIPPED]).values():
        assert failure.fidelity not in marked_tests(failure.folder, failure.id), failure.id


def test_list_names_tests_whose_fidelity_differs(pytester, entry_says, capsys):
    entry_says("stand-in")
    folder = pytester.path / "mine"
    (folder / "short_column" / "test_it.py").write_text(SIDED)
    asked = ["list", "short-column", "--scenarios", str(folder)]
    cli.main(asked)
    assert "  fidelity: stand-in; real: test_remedy; injected: test_put_in\n" in capsys.readouterr().out
    cli.main([*asked, "--json"])
    [found] = json.loads(capsys.readouterr().out)
    assert (found["fidelity"], found["fidelity_of_tests"]) == (
        "stand-in",
        {"real": ["test_remedy"], "injected": ["test_put_in"]},
    )
    cli.main([*asked, "--markdown"])
    assert "How real the tests are: stand-in; real: test_remedy; injected: test_put_in.\n" in capsys.readouterr().out
