"""What fails before a test's act says nothing of its failure: a component can't be driven so, or the test is wrong."""

from __future__ import annotations

import os

import pytest
from made_failures import FAILURES, write_failures

# A release of trl that takes the test's preparation otherwise than the test expects.
TRL = """
__version__ = "1.16.0"

class Manager:
    def __init__(self, folder):
        if folder is None:
            raise AssertionError("tokenizer or processor must be provided")

    def save(self, call=None):
        if call is not None:
            call()
        raise RuntimeError("no space left")


def read():
    import json
    return json.loads("{")
"""
TEST = """
import pytest
from trl_of_the_test import Manager, read
from pytest_rlregress.failures.act import act
{fixture}
@pytest.mark.{side}("short-column")
def test_it():
    {body}
"""
HERE = "trl 1.16.0 can't be driven this way: "
UNAVAILABLE = {
    "raised-inside": ("manager = Manager(None)\n    with act():\n        manager.save()", "tokenizer or processor *"),
    "standard-library-inside": ("read()\n    with act():\n        pass", "JSONDecodeError: Expecting property name *"),
    "raised-from": (
        "try:\n        Manager(None)\n    except AssertionError as error:\n        raise OSError('ours') from error\n"
        "    with act():\n        pass",
        "AssertionError: tokenizer or *",
    ),
}
VERDICTS = {
    "in-the-act": "manager = Manager('')\n    with act():\n        manager.save()",
    "after-the-act": "with act():\n        manager = Manager('')\n    manager.save()",
    "without-the-form": "Manager(None)",
}
ERRORS = {
    "assertion-of-the-test": "assert [] == [1]\n    with act():\n        pass",
    "called-back": (
        "def fails():\n        assert 0, 'ours'\n    Manager('').save(fails)\n    with act():\n        pass"
    ),
    "mistake": "undefined\n    with act():\n        pass",
    "no-witness": (
        "from pytest_rlregress.failures.act import witness\n    with act():\n        Manager('')\n"
        "    witness(False, 'the raylet lives')"
    ),
    "no-act": "if Manager(''):\n        return\n    with act():\n        pass",
}


@pytest.fixture
def tests_of(pytester, run, short_column, monkeypatch):
    """Run tests of ``short-column``, a file each, which drive a ``trl``: ``tests_of("guards", {name: body})``."""
    folder = pytester.mkdir("stack")
    (folder / "trl").mkdir()
    (folder / "trl" / "__init__.py").write_text(TRL)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    def tests_of(side, bodies, *options, fixture=""):
        for name, body in bodies.items():
            text = TEST.format(side=side, body=body, fixture=fixture).replace("trl_of_the_test", "trl")
            (pytester.path / "mine" / f"test_{name.replace('-', '_')}.py").write_text(text)
        return run({}, "--hw=cpu", "mine", "-v", *options)

    return tests_of


@pytest.mark.parametrize("options", [(), ("--rl-inline",)], ids=["contained", "inline"])
@pytest.mark.parametrize("side", ["reproduces", "guards"])
def test_component_that_fails_before_the_act_is_unavailable(tests_of, side, options):
    result = tests_of(side, {name: body for name, (body, _) in UNAVAILABLE.items()}, *options)
    result.assert_outcomes(skipped=len(UNAVAILABLE))
    for name, (_, said) in UNAVAILABLE.items():
        result.stdout.fnmatch_lines_random(
            [f"*test_{name.replace('-', '_')}.py::test_it UNAVAILABLE*", f"*{HERE}*{said}"]
        )


def test_component_that_was_required_is_an_error_where_it_cannot_be_driven(pytester, tests_of):
    write_failures(pytester.path / "mine", FAILURES.replace("components = {}", 'components = { trl = "any" }'))
    body, _ = UNAVAILABLE["raised-inside"]
    tests_of("reproduces", {"raised-inside": body}, "--rl-require=trl").assert_outcomes(failed=1)


def test_component_that_fails_from_the_act_on_has_a_verdict(tests_of):
    result = tests_of("reproduces", VERDICTS)
    result.assert_outcomes(failed=len(VERDICTS))
    result.stdout.fnmatch_lines_random([f"*test_{name.replace('-', '_')}.py::test_it CHANGED*" for name in VERDICTS])


@pytest.mark.parametrize("side", ["reproduces", "guards"])
def test_test_that_fails_by_itself_before_the_act_is_an_error(tests_of, side):
    result = tests_of(side, ERRORS)
    result.assert_outcomes(failed=len(ERRORS))
    result.stdout.no_fnmatch_line("*UNAVAILABLE*")
    result.stdout.fnmatch_lines_random(
        [
            "*came to its end before `with act():`*",
            "*not come as far as the act*",
            "*the fault that it injects did not happen: the raylet lives*",
        ]
    )


def test_component_that_fails_in_a_fixture_is_unavailable(tests_of):
    fixture = "\n@pytest.fixture(autouse=True)\ndef manager():\n    return Manager(None)\n"
    result = tests_of("guards", {"set-up": "pass"}, fixture=fixture)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"*{HERE}AssertionError: tokenizer or processor must be provided*"])
