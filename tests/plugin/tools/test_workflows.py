"""The workflows: they keep our rules; the shell steps of the nightly do their job.

GitHub is the boundary: ``workflow_jobs`` stands for it, and a bare repository for its git.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import yaml
from installed import CHECKOUT
from patience import PATIENCE
from workflow_jobs import Job, commit, git, github, needs, workflow

NIGHTLY = CHECKOUT / ".github/workflows/nightly-gpu.yml"
SHIPPED = sorted((CHECKOUT / ".github/workflows").glob("*.yml"))
PLATFORMS = [{"profile": "cpu", "runner": ["self-hosted"]}, {"profile": "h100", "runner": ["self-hosted", "h100"]}]
TESTS = """
import pytest

pytestmark = pytest.mark.hw("cpu")

def test_that_flips():
    assert {good}

def test_good():
    pass
"""
POSTS = {("issue", "create"), ("issue", "comment"), ("issue", "close")}
TOKEN = {"GH_TOKEN": "", "GH_REPO": ""}


def nightly(name, folder, where=None, **filled):
    return Job(NIGHTLY, name, folder, where, **{"PLATFORMS": json.dumps(PLATFORMS), **filled})


# -- rules --------------------------------------------------------------------------------------------------------


def rules(found):
    """What actionlint does not ask: no value in a script, versions, time limits, permissions."""
    for name, job in found["jobs"].items():
        if "timeout-minutes" not in job:
            yield f"{name}: no time limit"
        for step in job["steps"]:
            if "${{" in step.get("run", ""):
                yield f"{name}: a value in a script"
            if not re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/some@v1")):
                yield f"{name}: {step['uses']} without a version"
    if found.get("permissions") not in ({}, {"contents": "read"}):
        yield "permissions"


def test_shipped_workflows_follow_the_rules():
    assert len(SHIPPED) > 5
    assert [broken for path in SHIPPED for broken in rules(workflow(path))] == []


# -- one night ----------------------------------------------------------------------------------------------------


@needs("jq")
@pytest.mark.parametrize(
    ("profiles", "platforms"), [("", ["cpu", "h100"]), (" h100 ", ["h100"]), ("h100,cpu", ["cpu", "h100"])]
)
def test_plan_lists_the_requested_platforms(tmp_path, profiles, platforms):
    plan = nightly("plan", tmp_path / "plan", PROFILES=profiles)
    plan.run("Plan")
    assert [platform["profile"] for platform in json.loads(plan.outputs["platforms"])] == platforms
    in_twelve_hours = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=12)
    assert plan.outputs["night"] == in_twelve_hours.date().isoformat()


@needs("jq")
def test_plan_rejects_an_unknown_card(tmp_path):
    assert "no runner for h10; PLATFORMS has cpu, h100" in nightly("plan", tmp_path / "plan", PROFILES="h10").run(
        "Plan", 5
    )


def read(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    """A checkout in which a test went bad with the last commit, and the records of a run at each: good, and two bad."""
    folder = tmp_path_factory.mktemp("nights") / "checkout"
    job = nightly("card", folder, PROFILE="cpu", ARGUMENTS="test_it.py -k 'flips or good'")
    (folder / "pytest.ini").write_text("[pytest]\n")
    git(folder, "init", "--quiet", ".")
    for good in (True, False):
        (folder / "test_it.py").write_text(TESTS.format(good=good))
        git(folder, "add", "test_it.py", "pytest.ini")
        git(folder, "commit", "--quiet", "-m", f"good: {good}")
        printed = job.run("Run", 0 if good else 1, GOLDENS="")
        assert "record: " in printed
    job.run("Run again", 1)
    return folder


@pytest.mark.slow
def test_failed_night_is_run_again(card):
    tests = [
        [(test["name"], test["status"]) for test in record["results"]["tests"]] for record in read(card / "records")
    ]
    good, bad, again = tests
    assert good == [("test_it.py::test_that_flips", "passed"), ("test_it.py::test_good", "passed")]
    assert bad == [("test_it.py::test_that_flips", "failed"), ("test_it.py::test_good", "passed")]
    assert again == bad


def test_cron_runs_a_night_that_failed_again(tmp_path):
    shutil.copy(CHECKOUT / "docs/nightly/card.sh", tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [tmp_path / "card.sh", "no-such-card", "-q"]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.count("no-such-card") == 2, done.stderr


@pytest.mark.slow
def test_a_cancelled_run_leaves_a_record(tmp_path):
    """What cancels a step is sent to its first process: that must be pytest."""
    job = nightly("card", tmp_path / "card", PROFILE="cpu", ARGUMENTS="test_it.py")
    (job.folder / "pytest.ini").write_text("[pytest]\n")
    (job.folder / "test_it.py").write_text(
        "import pathlib, pytest, time\n@pytest.mark.hw('cpu')\ndef test_long():\n"
        f"    pathlib.Path({str(job.folder / 'begun')!r}).touch(); time.sleep(60)\n"
    )
    command, environment = job.script("Run", GOLDENS="")
    with open(job.folder / "log", "w") as log:
        running = subprocess.Popen(command, cwd=job.folder, env=environment, stdout=log, stderr=log)
    begun = time.monotonic()
    while not (job.folder / "begun").exists() and time.monotonic() < begun + PATIENCE:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 2, (job.folder / "log").read_text()
    (record,) = read(job.folder / "records")
    assert record["results"]["extra"]["state"] != "complete"


# -- the report, night after night --------------------------------------------------------------------------------


class Nights:
    """The jobs after the cards', for nights in a row."""

    def __init__(self, folder):
        self.folder, self.date, self.report = folder, datetime.date(2026, 11, 19), None
        self.github = github(folder)

    def tonight(self, *records, expect=PLATFORMS[:1]):
        """Run the job of the report on a night with these records: what is said on GitHub, verb and text."""
        self.date += datetime.timedelta(days=1)
        report = nightly("report", self.folder / f"report{self.date}", self.github, NIGHT=str(self.date), **TOKEN)
        (report.folder / "pyproject.toml").touch()  # of the checkout
        (report.folder / "tonight").mkdir()
        for hour, record in enumerate(records, 1):
            self.write(report.folder / "tonight", record, hour)
        report.run("Keep the records")
        report.run("Report", PLATFORMS=json.dumps(expect))
        self.report = report
        return self.said(report, "Issue", CLOSED=report.outputs["closed"])

    def write(self, folder, record, hour):
        """A real record, as if it were of tonight."""
        moment = datetime.datetime.combine(self.date, datetime.time(hour), datetime.UTC)
        start, copy = round(moment.timestamp() * 1000), {**record, "reportId": str(uuid.uuid4())}
        summary = {**record["results"]["summary"], "start": start, "stop": start + 60_000}
        copy["results"] = {**record["results"], "summary": summary}
        (folder / f"{moment:%Y%m%dT%H%M%SZ}-cpu-{copy['reportId'][:6]}.json").write_text(json.dumps(copy))

    def answer(self, text):
        """Run the job that posts what the bisects found; what is said on GitHub."""
        outputs = {"ISSUE": self.report.outputs["issue"], "BISECTS": self.report.outputs["bisects"]}
        answer = nightly("answer", self.folder / f"answer{self.date}", self.github, **outputs, **TOKEN)
        (answer.folder / "answers").mkdir()
        (answer.folder / "answers" / "bisect-cpu.md").write_text(text)
        return self.said(answer, "Answer")

    def said(self, job, step, **filled):
        log = self.folder / "log"
        log.write_text("")
        job.run(step, **filled)
        calls = [json.loads(line) for line in log.read_text().splitlines()]
        return [(verb, body or " ".join(rest)) for what, verb, *rest, body in calls if (what, verb) in POSTS]


@pytest.mark.slow
@needs("jq")
def test_nights_open_and_close_the_gate(card, tmp_path):
    good, bad, again = read(card / "records")
    nights = Nights(tmp_path)

    assert nights.tonight(good) == []
    assert (nights.report.outputs["closed"], "issue" in nights.report.outputs) == ("0", False)
    assert "all 2 tests pass" in (nights.report.folder / "GITHUB_STEP_SUMMARY").read_text()

    assert nights.tonight(bad) == []  # in one run only: not confirmed, nobody is told
    assert "unconfirmed" in (nights.report.folder / "GITHUB_STEP_SUMMARY").read_text()

    ((verb, text),) = nights.tonight(bad, again)
    assert verb == "create"
    assert "Regression on cpu" in text
    assert "`test_it.py::test_that_flips` passed -> failed" in text
    assert f"{nights.github['GITHUB_SERVER_URL']}/some/where/actions/runs/42" in text
    assert nights.report.outputs["issue"] == "7"
    (bisect,) = json.loads(nights.report.outputs["bisects"])
    ends = "{}..{}".format(*(record["results"]["extra"]["git"]["commit"][:12] for record in (good, bad)))
    assert bisect["runner"] == ["self-hosted"]
    assert bisect["command"].split("' '")[:4] == ["'rlregress", "bisect", "--revisions", ends]

    ((verb, text),) = nights.answer("**Broke in** the second commit")
    assert verb == "comment"
    assert text == f"### `{bisect['title']}`\n\n**Broke in** the second commit"

    ((verb, text),) = nights.tonight(bad, again)  # the same issue, and what was answered is not asked again
    assert verb == "comment"
    assert "5 runs in 3 nights" in text
    assert json.loads(nights.report.outputs["bisects"]) == []

    assert nights.tonight(good, expect=PLATFORMS) == []  # well here, but no run there
    ((verb, text),) = nights.tonight(good)
    assert verb == "close"
    assert "Well again" in text

    kept = git(tmp_path / "server/some/where", "ls-tree", "--name-only", "nightly-records").splitlines()
    assert len([name for name in kept if name.endswith("-cpu-" + name[-11:])]) == len(kept) == 8


@pytest.mark.slow
@needs("jq")
def test_two_concurrent_reports_keep_their_records(card, tmp_path):
    good, *_ = read(card / "records")
    nights = Nights(tmp_path)
    nights.tonight(good)
    other = nightly("report", tmp_path / "other", nights.github, NIGHT=str(nights.date), **TOKEN)
    (other.folder / "tonight").mkdir()
    nights.write(other.folder / "tonight", good, 5)
    theirs = tmp_path / "theirs"
    git(tmp_path, "clone", "--quiet", "--branch", "nightly-records", "server/some/where", str(theirs))
    (theirs / "theirs.json").touch()
    commit(theirs, "theirs")
    hook = tmp_path / "server/some/where/hooks/pre-receive"  # theirs is pushed between the other's clone and its push
    hook.write_text(f'#!/bin/sh\nrm "$0"\nunset $(env | grep -o "^GIT_[A-Z_]*")\ngit -C {theirs} push -q && exit 1\n')
    hook.chmod(0o755)
    other.run("Keep the records")
    assert len(git(tmp_path / "server/some/where", "ls-tree", "--name-only", "nightly-records").splitlines()) == 3


@pytest.mark.slow
def test_gitlab_report_closes_the_gate_after_a_bad_night(card, tmp_path):
    """Two nights: a good one, and one in which the gate closes."""
    report = yaml.safe_load((CHECKOUT / "docs/nightly/gitlab-ci.yml").read_text())["report"]["script"]
    good, *bad = read(card / "records")
    nights = Nights(tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for code, records in enumerate([[good], bad]):
        folder = tmp_path / f"night{code}"
        (folder / "records").mkdir(parents=True)
        nights.date += datetime.timedelta(days=1)
        for hour, record in enumerate(records, 1):
            nights.write(folder / "records", record, hour)
        own = {"PATH": path, "BRANCH": "nightly-records", "RECORDS_URL": f"file://{tmp_path}/server/some/where"}
        own |= {"CI_PIPELINE_CREATED_AT": f"{nights.date}T01:17:00Z", "CARDS": "cpu"}
        command = ["bash", "-e", "-c", "\n".join(report)]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stdout + done.stderr
    assert "1 regression" in (folder / "summary.md").read_text()
    assert len(list((folder / "history").glob("*.json"))) == 3


def test_workflow_runs_only_the_written_bisect_command(tmp_path):
    job = nightly("bisect", tmp_path / "bisect", ANSWER="bisect-cpu.md")
    command = "'rlregress' 'bisect' '--good-lock' 'a' '--bad-lock' 'b' 'it'\\''s not there.py'"
    assert "no such test: it's not there.py" in job.run("Bisect", 2, COMMAND=command)
    assert "rlregress" not in job.run("Bisect", 2, COMMAND="'touch' 'here'")
    assert not (job.folder / "here").exists()
