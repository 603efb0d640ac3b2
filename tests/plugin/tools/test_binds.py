"""The night's look at which releases bind: what is news, and what isn't."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def binds(script):
    return script("binds")


def make_matrix(pairs):
    """Make a matrix of TRL with vLLM: by both releases what breaks, and what does in some cases; None was not read."""
    made = [
        {
            "trainer": trainer,
            "release": release,
            "not_read": "no wheel" if broken is None else "",
            "breaks": [describe(name) for name in broken or () if not name.startswith("if ")],
            "in_some_cases": [describe(name) for name in broken or () if name.startswith("if ")],
        }
        for (trainer, release), broken in pairs.items()
    ]
    return {"trainer": "trl", "package": "vllm", "pairs": made}


def describe(name):
    part = "LoRA" if name.startswith("if ") else ""
    return {"subject": name.removeprefix("if "), "path": "trl/a.py", "line": 3, "function": "start", "part": part}


@pytest.fixture
def run(binds, tmp_path, monkeypatch):
    """Run a night; returns the subjects that are news, and the issue's title."""

    def night(pairs):
        monkeypatch.setattr(binds, "read_matrices", lambda page: [make_matrix(pairs)])
        out = tmp_path / "issue"
        news = binds.night(tmp_path / "binds.md", tmp_path / "history", out)
        title = out / "title.txt"
        return [one["subject"] for one in news], title.read_text() if title.exists() else ""

    return night


FIRST = {("1.0", "5.0"): ["old"], ("1.1", "5.0"): []}


def test_the_first_night_has_no_news(run, tmp_path):
    assert run(FIRST) == ([], "")
    assert json.loads((tmp_path / "history/binds.json").read_text()) == {"vllm": ["5.0"]}


def test_a_new_release_that_breaks_the_newest_trainer_is_news(run, tmp_path):
    run(FIRST)
    tonight = {
        ("1.0", "5.0"): ["old"],
        ("1.0", "5.1"): ["old", "a"],
        ("1.1", "5.0"): [],
        ("1.1", "5.1"): ["f(x=…)", "if g"],
    }
    assert run(tonight) == (["f(x=…)", "g"], "vllm 5.1: 2 names and calls of the newest trainers no longer bind")
    body = (tmp_path / "issue/body.md").read_text()
    assert "`f(x=…)`" in body
    assert "LoRA" in body
    (tmp_path / "issue/title.txt").unlink()
    assert run(tonight) == ([], "")  # told once


def test_what_the_release_before_lacks_too_is_no_news(run):
    run(FIRST)
    assert run({("1.1", "5.0"): ["a"], ("1.1", "5.1"): ["a"]}) == ([], "")


def test_a_new_release_that_was_not_read_is_new_the_next_night(run):
    run(FIRST)
    assert run({("1.1", "5.0"): [], ("1.1", "5.1"): None}) == ([], "")
    assert run({("1.1", "5.0"): [], ("1.1", "5.1"): ["a"]})[0] == ["a"]


def test_without_an_answer_nothing_is_kept(binds, tmp_path, monkeypatch):
    monkeypatch.setattr(binds.subprocess, "run", lambda *_, **__: binds.subprocess.CompletedProcess((), 3, stdout=""))
    with pytest.raises(ValueError, match="exit code 3"):
        binds.night(tmp_path / "binds.md", tmp_path / "history", tmp_path / "issue")
    assert not (tmp_path / "history").exists()
