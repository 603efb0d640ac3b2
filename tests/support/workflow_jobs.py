"""Runs the shell steps of a workflow as GitHub would; a ``gh`` that keeps one issue in a file stands for GitHub."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from patience import PATIENCE

GH = """#!{python}
import json, os, pathlib, subprocess, sys

arguments = sys.argv[1:]
value = lambda option: arguments[arguments.index(option) + 1]
body = pathlib.Path(value("--body-file")).read_text() if "--body-file" in arguments else None
with open(os.environ["GH_LOG"], "a") as log:
    print(json.dumps([*arguments, body]), file=log)
state = pathlib.Path(os.environ["GH_STATE"])
issue = json.loads(state.read_text()) if state.exists() else None
comments = issue and issue["comments"]
verb = arguments[:2]
if verb == ["issue", "create"]:
    assert issue is None and value("--label")
    issue = dict(number=7, body=body, comments=[])
    print("https://github.com/some/where/issues/7")
elif verb == ["issue", "comment"]:
    assert arguments[2] == str(issue["number"]) and len(body) < 65536
    comments.append(dict(body=body))
elif verb == ["issue", "close"]:
    assert arguments[2] == str(issue["number"])
    issue = None
elif verb in (["issue", "list"], ["issue", "view"]):
    found = ([issue] if issue else []) if verb[1] == "list" else issue
    sys.exit(subprocess.run(["jq", "-r", value("--jq")], input=json.dumps(found), text=True).returncode)
else:
    assert verb in (["auth", "setup-git"], ["label", "create"]), arguments
state.write_text(json.dumps(issue)) if issue else state.unlink(missing_ok=True)
"""


def needs(*programs):
    here = os.environ.get("CI") or all(map(shutil.which, programs))
    return pytest.mark.skipif(not here, reason=f"needs {' and '.join(programs)}")


def workflow(path):
    return yaml.safe_load(path.read_text())


class Job:
    """Runs the shell steps of a job one after the other in a folder, as GitHub does.

    Values that GitHub would fill in (``${{ … }}``) are given by name; one that is not is an error.
    """

    def __init__(self, file, name, folder, github=None, **filled):
        self.workflow, self.folder, self.github = workflow(file), folder, github or {}
        self.job = self.workflow["jobs"][name]
        self.filled = filled
        folder.mkdir(exist_ok=True)
        self.outputs = {}

    def script(self, name, **filled):
        """The command of a step, and its environment."""
        step = next(step for step in self.job["steps"] if step.get("name") == name)
        declared = {**self.workflow["env"], **self.job.get("env", {}), **step.get("env", {})}
        given = {**self.filled, **filled}
        assert set(filled) <= set(declared)
        values = {key: given[key] if key in given or "${{" in value else value for key, value in declared.items()}
        (self.folder / "step.sh").write_text(step["run"])
        # Without what the surrounding run of pytest has set.
        outer = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "RLREGRESS_"))}
        path = os.pathsep.join([str(self.folder.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        files = {key: str(self.folder / key) for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        return ["bash", "-e", "step.sh"], {**outer, "PATH": path, **self.github, **files, **values}

    def run(self, name, code=0, **filled):
        """Run a step, check its exit code, take its outputs; what it printed."""
        command, environment = self.script(name, **filled)
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == code, done.stdout + done.stderr
        outputs = self.folder / "GITHUB_OUTPUT"
        lines = outputs.read_text().splitlines() if outputs.exists() else []
        self.outputs = dict(line.split("=", 1) for line in lines)
        return done.stdout + done.stderr


def github(folder):
    """Make a ``gh`` and a bare repository ``some/where`` in a folder; returns what GitHub sets in a job there."""
    (folder / "bin").mkdir()
    (folder / "bin" / "gh").write_text(GH.format(python=sys.executable))
    (folder / "bin" / "gh").chmod(0o755)
    git(folder, "init", "--quiet", "--bare", "server/some/where")
    return {
        "GITHUB_SERVER_URL": f"file://{folder}/server",
        "GITHUB_REPOSITORY": "some/where",
        "GITHUB_RUN_ID": "42",
        "GH_LOG": str(folder / "log"),
        "GH_STATE": str(folder / "issue"),
    }


def commit(folder, message):
    """Commit all of a folder, in its repository or in a new one."""
    git(folder, "init", "--quiet", ".")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", message)


def git(folder, *arguments):
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
