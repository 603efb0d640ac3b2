"""No scenario is a test that cannot fail: under each of its twins it must come to the verdict meant for that."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from twins import CATALOGUE, TWINS

# Every id, but for the row of the miniature step, whose twins are in test_training_twins.py.
DOCUMENTED = [failure.id for failure in CATALOGUE.values() if failure.signatures]


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """How often each chosen twin brought which verdict: one run of their scenarios, so that the stack starts once."""
    chosen = {item.callspec.params.get("twin") for item in request.session.items if item.path == request.path}
    folders = sorted({twin.folder for twin in chosen if twin})
    junit = tmp_path_factory.mktemp("twins") / "junit.xml"
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "-q", "-p", "twins", f"--junitxml={junit}"]
    command += ["--pyargs", *(f"pytest_rlregress.scenarios.{folder}" for folder in folders)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert junit.exists(), done.stdout + done.stderr
    found = defaultdict(Counter)
    for case in ET.parse(junit).getroot().iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if "twin" in said:  # not of a test that is unavailable here
            found[said["twin"]][said["rlregress_verdict"]] += 1
    print(done.stdout)
    return found


@pytest.mark.parametrize("twin", TWINS, ids=[f"{twin.failure}-{twin.name}" for twin in TWINS])
def test_twin_is_seen(verdicts, twin):
    found = verdicts[f"{twin.failure} {twin.name}"]
    assert found[twin.verdict], (
        f"{twin.name} should make a test of {twin.failure} {twin.verdict}; its tests came to "
        f"{dict(found) or 'nothing: none ran'}"
    )


@pytest.mark.parametrize("failure", DOCUMENTED)
def test_every_failure_has_its_twins(failure):
    verdicts = {twin.verdict for twin in TWINS if twin.failure == failure}
    assert "regressed" in verdicts, "no twin breaks the remedy"
    assert "changed" in verdicts, "no twin makes it fail otherwise"
    # What is absent on the locked stack must be seen where it is not.
    assert verdicts & {"absent", "reproduced", "returned"}, "no twin is a stack that differs in having the failure"
