"""The example in docs/your-code.md: a trainer's own functions under the guards, sound and broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from installed import CHECKOUT

pytestmark = pytest.mark.slow

EXAMPLE = CHECKOUT / "examples" / "mytrainer"
# What needs no engine: the whole of it takes a minute and more.
CHOSEN = "(dataproto or max_tokens) and not server and not offline and not chat"


@pytest.mark.parametrize(("options", "worst"), [([], "held"), (["-c", "broken.toml"], "regressed")])
def test_guards_exercise_the_users_functions(tmp_path, options, worst):
    project = shutil.copytree(EXAMPLE, tmp_path / "mytrainer")
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "-k", CHOSEN, "--junitxml=junit.xml", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=280)
    seen = {}
    for case in ET.parse(project / "junit.xml").getroot().iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if said.get("rlregress_side") == "guards":
            seen.setdefault(said["rlregress_subject"].partition(":")[2], set()).add(said["rlregress_verdict"])
    assert {name: max(verdicts) for name, verdicts in seen.items()} == {"same_columns": worst, "token_budget": worst}
    assert set().union(*seen.values()) <= {"held", "regressed"}, done.stdout
