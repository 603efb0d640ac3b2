"""No scenario is a test that cannot fail: under each of its mutants it must come to the verdict meant for that."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from mutants import CATALOGUE, MUTANTS

# Every id, but for the row of the miniature step, whose mutants are in test_training_mutants.py.
DOCUMENTED = [failure.id for failure in CATALOGUE.values() if failure.signatures]


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """How often each chosen mutant brought which verdict: one run of their scenarios, so that the stack starts once."""
    chosen = {item.callspec.params.get("mutant") for item in request.session.items if item.path == request.path}
    folders = sorted({mutant.folder for mutant in chosen if mutant})
    junit = tmp_path_factory.mktemp("mutants") / "junit.xml"
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "-q", "-p", "mutants", f"--junitxml={junit}"]
    command += ["--pyargs", *(f"pytest_rlregress.scenarios.{folder}" for folder in folders)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert junit.exists(), done.stdout + done.stderr
    found = defaultdict(Counter)
    for case in ET.parse(junit).getroot().iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if "mutant" in said:  # not of a test that is unavailable here
            found[said["mutant"]][said["rlregress_verdict"]] += 1
    print(done.stdout)
    return found


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.failure}-{mutant.name}" for mutant in MUTANTS])
def test_mutant_is_seen(verdicts, mutant):
    found = verdicts[f"{mutant.failure} {mutant.name}"]
    if mutant.verdict == "held":
        assert found["held"], f"the guards of {mutant.failure} came to {dict(found)} on a stack without it"
        assert found.keys() <= {"held", "unavailable"}, f"the guards came to {dict(found)} on a stack without it"
        return
    assert found[mutant.verdict], (
        f"{mutant.name} should make a test of {mutant.failure} {mutant.verdict}; its tests came to "
        f"{dict(found) or 'nothing: none ran'}"
    )


@pytest.mark.parametrize("failure", DOCUMENTED)
def test_every_failure_has_its_mutants(failure):
    verdicts = {mutant.verdict for mutant in MUTANTS if mutant.failure == failure}
    assert "regressed" in verdicts, "no mutant breaks the remedy"
    assert "changed" in verdicts, "no mutant makes it fail otherwise"
    # What is absent on the locked stack must be seen where it is not.
    assert verdicts & {"absent", "reproduced", "returned"}, "no mutant is a stack that differs in having the failure"
