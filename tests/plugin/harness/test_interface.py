"""Interfaces that a test needs and the installed version doesn't have are told from failures inside the stack."""

from __future__ import annotations

import importlib
import sys

import needs
import pytest
from made_failures import FAILURES, write_failures

from pytest_rlregress.harness.interface import missing_interface

# A release of trl without what a test drives.
TRL = {
    "trl/__init__.py": "class Trainer:\n    def __init__(self, model): ...\n    def step(self): ...\n",
    "trl/old.py": "def score(prompt): return 0\ndef fail(): raise AttributeError('inside')\n",
    "trl/broken.py": "import trl.gone\n",
    "trl/typo.py": "def act(): return undefined_name\n",
}
DRIVEN = {
    "submodule": ("import trl.new", "trl.new"),
    "name": ("from trl.old import grade", "trl.old.grade"),
    "attribute": ("import trl.old; trl.old.grade", "trl.old.grade"),
    "attribute-of-a-class": ("from trl import Trainer; Trainer.fit", "trl.Trainer.fit"),
    "patched": ("import trl.old; monkeypatch.setattr(trl.old, 'grade', None)", "trl.old.grade"),
    "by-name": ("import importlib; importlib.import_module('trl.new')", "trl.new"),
    "argument": ("from trl.old import score; score()", "trl.old.score (missing 1 required"),
    "keyword": ("from trl.old import score; score('', n=2)", "trl.old.score (got an unexpected keyword argument 'n')"),
    "of-a-module": ("from trl import old; old.score()", "trl.old.score (missing 1 required"),
    "of-a-class": ("from trl import Trainer; Trainer()", "trl.Trainer.__init__ (missing 1 required"),
    "of-a-method": ("from trl import Trainer; t = Trainer(1); t.step(2)", "trl.Trainer.step (takes 1 positional"),
}
NOT_DRIVEN = {
    "inside-of-the-stack": "from trl.old import fail; fail()",
    "import-inside-of-the-stack": "import trl.broken",
    "another-package": "import json; json.nothing",
    "what-came-out": "None.grade",
    "own-function": "def mine(a): ...\nmine()",
    "hidden-by-the-remedy": "import sys; sys.modules['trl'] = None; import trl",
    "own-error": "raise AttributeError('module trl has no attribute x')",
    "a-name-inside-of-the-stack": "from trl.typo import act; act()",
}
TEST = """
import pytest

@pytest.mark.{side}("short-column")
def test_it(monkeypatch):
    {body}
"""


@pytest.fixture
def trl(tmp_path, monkeypatch):
    """A trl of three functions in front of the installed one; its folder."""
    for name, text in TRL.items():
        (tmp_path / "stack" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stack" / name).write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path / "stack"))
    yield tmp_path / "stack"
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        del sys.modules[name]


def raised_by(tmp_path, monkeypatch, body):
    """What a test file with this body raises, and the file."""
    folder = tmp_path / "tests"
    folder.mkdir()
    indented = body.replace("\n", "\n    ")
    (folder / "driving_trl.py").write_text(f"def act(monkeypatch):\n    {indented}\n")
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("driving_trl")
    try:
        with pytest.raises(Exception) as caught, pytest.MonkeyPatch.context() as patch:  # noqa: PT011 - any
            module.act(patch)
    finally:
        del sys.modules["driving_trl"]
    return caught.value, folder / "driving_trl.py"


@pytest.mark.parametrize("how", DRIVEN)
def test_names_the_missing_interface_with_the_version(trl, tmp_path, monkeypatch, how):
    body, interface = DRIVEN[how]
    said = missing_interface(*raised_by(tmp_path, monkeypatch, body))
    assert said.startswith(f"needs {interface}")
    assert said.endswith(", which trl 1.16.0 doesn't have")


@pytest.mark.parametrize("how", NOT_DRIVEN)
def test_other_errors_are_not_a_missing_interface(trl, tmp_path, monkeypatch, how):
    assert missing_interface(*raised_by(tmp_path, monkeypatch, NOT_DRIVEN[how])) == ""


def test_an_attribute_of_an_object_is_one_where_a_helper_asks_for_it(trl, tmp_path, monkeypatch):
    error, file = raised_by(tmp_path, monkeypatch, "from trl import Trainer; Trainer(1).fit")
    assert missing_interface(error, file) == "", "the test's own file looks at what came out"
    said = missing_interface(error, file.with_name("test_it.py"))
    assert said == "needs trl.Trainer.fit, which trl 1.16.0 doesn't have"


@pytest.mark.parametrize(
    "body",
    ["import apex", "raise ImportError('the Trainer requires `apex>=1.1`: pip install trl[apex]')"],
    ids=["imported", "named in the message"],
)
def test_names_a_missing_component_whoever_imports_it(trl, tmp_path, monkeypatch, body):
    error, file = raised_by(tmp_path, monkeypatch, body)
    said = "apex is not installed: from source: https://github.com/NVIDIA/apex"
    assert missing_interface(error, file) == missing_interface(error, tmp_path / "test_it.py") == said


def test_a_users_function_under_a_guard_is_the_users(trl, tmp_path, monkeypatch):
    error, file = raised_by(tmp_path, monkeypatch, "import trl.new")
    assert missing_interface(error, file)
    assert missing_interface(error, tmp_path / "test_it.py") == ""


@pytest.fixture
def tests_of(pytester, run, short_column):
    """Run tests of ``short-column``, each in a file of its own: ``tests_of({"test_act": ("reproduces", body)}, …)``."""

    def tests_of(tests, *args):
        for name, (side, body) in tests.items():
            (pytester.path / "mine" / f"{name}.py").write_text(TEST.format(side=side, body=body))
        return run({}, "--hw=cpu", "mine", *args)

    return tests_of


def test_of_a_missing_interface_is_unavailable(tests_of):
    body = "import torch; torch.nothing_of_the_sort"
    result = tests_of({"test_act": ("reproduces", body), "test_remedy": ("guards", body)})
    assert result.ret == 0
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        ["NOTHING TRIED on cpu: no test could run.", "Not tried, 2 tests, for want of: torch.nothing_of_the_sort (2)."]
    )


def test_guard_needs_only_its_own_components(pytester, tests_of):
    mine, missing = pytester.path / "mine", "ImportError('the Trainer requires `apex>=1.1`')"
    write_failures(mine, FAILURES.replace("components = {}", 'components = { apex = "any" }'))
    bodies = {"UNAVAILABLE": f"raise {missing}", "HELD": "pass", "REGRESSED": "assert 0"}
    guards = {f"test_{verdict}": ("guards", body) for verdict, body in bodies.items()}
    result = tests_of({**guards, "test_act": ("reproduces", "import apex")}, "-v")
    result.stdout.fnmatch_lines_random([f"*test_{verdict}.py::test_it {verdict}*" for verdict in bodies])
    result.stdout.fnmatch_lines(["*2 x apex is not installed: from source: *"])


NEEDS = """
import pytest
from pathlib import Path

pytestmark = pytest.mark.guards("short-column")

@pytest.mark.needs("wandb.old:score(prompt)")
def test_there(): Path("there").touch()

MASKED = pytest.mark.needs("wandb.old:score(prompt, mask)")

@pytest.mark.parametrize("way", ["plain", pytest.param("new", marks=MASKED)])
def test_way(way): Path(way).touch()

@pytest.mark.needs("wandb.old:grade", "wandb.new:score", "wandb.new:grade")
def test_gone(): Path("gone").touch()
"""


def test_an_interface_that_the_release_lacks_is_unavailable(pytester, run, short_column):
    files = {"__init__.py": "", "old.py": "def score(prompt): ..."}
    for name in ("wandb", "wandb-0.7.1.dist-info"):
        pytester.mkdir(name)
    for name, text in files.items():
        (pytester.path / "wandb" / name).write_text(text)
    (pytester.path / "wandb-0.7.1.dist-info" / "METADATA").write_text("Name: wandb\nVersion: 0.7.1\n")
    pytester.syspathinsert()
    result = run({"mine/test_it": NEEDS}, "--hw=cpu", "mine", "-v", "-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines_random(
        [
            "*needs wandb.old.score(mask=…), which wandb 0.7.1 doesn't have",
            "*needs wandb.old.grade, which wandb 0.7.1 doesn't have; needs wandb.new, which wandb 0.7.1 doesn't have",
        ]
    )
    assert [(pytester.path / name).exists() for name in ("there", "plain", "new", "gone")] == [True, True, False, False]


def test_an_interface_that_is_spelt_wrong_ends_the_collection(run, short_column):
    wrong = "import pytest\n@pytest.mark.needs('trl.old:score(')\ndef test_it(): pass\n"
    result = run({"test_wrong": wrong}, "--hw=cpu", "test_wrong.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *test_it: needs(): 'trl.old:score(' isn't an interface. Allowed: *"])


MISTAKES = {
    "undefined_name": "a mistake of the test: NameError: name 'undefined_name' is not defined",
    "import torch; torch.zeros(1, device='cuda')": "the test uses a GPU, which the marker hw has to say: *",
    "pass\n\n@pytest.fixture\ndef monkeypatch():\n    raise OSError('no space')": (
        "*the test did not come as far as the act*"
    ),
}


def test_mistake_in_a_test_is_not_a_verdict(tests_of):
    result = tests_of({f"test_{number}": ("guards", body) for number, body in enumerate(MISTAKES)})
    assert result.ret == 1
    result.assert_outcomes(failed=2, errors=1)
    result.stdout.fnmatch_lines_random(["*- no verdict -*", *MISTAKES.values()])
    result.stdout.no_fnmatch_line("*regressed*")


@pytest.mark.parametrize("options", [(), ("--rl-inline",)], ids=["contained", "inline"])
def test_a_test_that_does_not_act_is_not_absent(tests_of, options):
    bodies = ["pass", "assert True", "column = [1, 2][0]"]
    result = tests_of({f"test_{number}": ("reproduces", body) for number, body in enumerate(bodies)}, *options)
    assert result.ret == 1
    result.assert_outcomes(failed=3)
    said = "*a mistake of the test: the test did not act: it raised nothing, and called nothing"
    result.stdout.fnmatch_lines([said] * 3)
    result.stdout.no_fnmatch_line("*absent ?/?*")


@needs.stack
def test_an_act_is_a_call_into_a_package_or_to_another_process(tests_of):
    bodies = [
        "import json; json.dumps({})",
        "import torch; torch.ones(2)",
        "import torch.nn; torch.nn.Linear(2, 2)",
        "import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
        "import subprocess; subprocess.run(['true'], check=True)",
        "import socket; socket.socket(type=socket.SOCK_DGRAM).connect(('127.0.0.1', 9))",
        "import threading, torch; t = threading.Thread(target=torch.ones, args=(2,)); t.start(); t.join()",
    ]
    marked = [("reproduces", f'{body}\ntest_it = pytest.mark.needs("torch")(test_it)') for body in bodies]
    result = tests_of({f"test_{number}": test for number, test in enumerate(marked)}, "-v")
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["*test_0.py::test_it*", "*called nothing installed, though it needs torch*"])


def test_an_environment_without_a_stack_is_refused(run, tmp_path, monkeypatch):
    hide = "import sys; sys.modules.update(dict.fromkeys(('torch', 'vllm', 'ray', 'transformers')))"
    (tmp_path / "hide.py").write_text(hide)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = run({}, "--hw=cpu", "-p", "hide")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*nothing to judge in this environment: *python* has neither torch nor vllm nor *"])


def test_an_import_that_the_stack_fails_at_says_nothing_of_another_failure(trl, tests_of, monkeypatch):
    """A reproduction ended before its failure could come; a guard fails, as it would for who follows the remedy."""
    monkeypatch.setenv("PYTHONPATH", str(trl))
    body = "import trl.broken"
    result = tests_of({"test_act": ("reproduces", body), "test_remedy": ("guards", body)})
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*Not tried, 1 test, for want of: trl.gone (1).*"])
