"""The example in docs/your-code.md: a trainer's own functions under the guards, sound and broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "mytrainer"
# What needs no server: the whole of a subject's guards is for the user.
GUARDS = "test_aligned_batches or test_arithmetic"


@pytest.mark.parametrize(("options", "verdict"), [([], "held"), (["-c", "broken.toml"], "regressed")])
def test_own_functions_are_what_the_guards_exercise(tmp_path, options, verdict):
    project = shutil.copytree(EXAMPLE, tmp_path / "mytrainer")
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "-k", GUARDS, "--junitxml=junit.xml", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=280)
    seen = set()
    for case in ET.parse(project / "junit.xml").getroot().iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if "rlregress_component" in said:  # what the guards need is checked first
            continue
        seen.add((said["rlregress_subject"].partition(":")[2], said["rlregress_verdict"]))
    assert seen == {("same_columns", verdict), ("token_budget", verdict)}, done.stdout
