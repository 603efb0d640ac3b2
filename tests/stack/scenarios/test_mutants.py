"""No scenario is a test that cannot fail: under each of its mutants it must come to the verdict meant for that.

For one failure: ``pytest tests/stack/scenarios/test_mutants.py -k ragged-index-lost``; for a folder ``-k batch/``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict

import pytest
from cards import h20
from installed import SUPPORT

from mutants import CATALOGUE, CHOSEN, MUTANTS, SUBJECTS

#: What NVML's stand-in has in runs on other hardware than a CPU.
CARDS = {"h20": h20()}
# Every id but for the rows of the steps, whose mutants are in test_training_mutants.py.
DOCUMENTED = [failure for failure in CATALOGUE.values() if failure.documented]


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory, fake_nvml):
    """How often each chosen mutant brought which verdict: one run for each hardware, so that the stack starts once."""
    chosen = []
    for item in request.session.items:
        if item.path == request.path:
            chosen += [item.callspec.params.get("mutant")] if "mutant" in item.fixturenames else []
    found = defaultdict(Counter)
    for hw in sorted({mutant.hw for mutant in chosen}):
        mutants = [mutant for mutant in chosen if mutant.hw == hw]
        run_mutants(mutants, hw, tmp_path_factory.mktemp("mutants"), fake_nvml, found)
    return found


def run_mutants(mutants, hw, folder, fake_nvml, found):
    """Run the scenarios of mutants, and count in ``found`` what verdicts they came to."""
    names = sorted({f"{mutant.failure.area}.{mutant.failure.folder.name}" for mutant in mutants})
    junit = folder / "junit.xml"
    (folder / "chosen").write_text("\n".join({mutant.key for mutant in mutants}))
    command = [sys.executable, "-m", "pytest", f"--hw={hw}", "-q", "-p", "mutants", f"--junitxml={junit}"]
    command += [*SUBJECTS, "--pyargs", *(f"pytest_rlregress.scenarios.{name}" for name in names)]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT), CHOSEN: str(folder / "chosen")}
    if hw in CARDS:
        folders = [str(fake_nvml), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(folders)
        environment["FAKE_NVML_DEVICES"] = CARDS[hw].line()
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for case in ET.parse(junit).getroot().iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if "mutant" in said:  # not of a test that is unavailable here
            found[said["mutant"]][said.get("rlregress_verdict", "none")] += 1
    print(done.stdout)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=[f"{mutant.failure.area}/{mutant.failure.id}-{mutant.name}" for mutant in MUTANTS]
)
def test_mutant_is_seen(verdicts, mutant):
    found = verdicts[mutant.key]
    if mutant.verdict == "held":
        assert found["held"], f"the guards of {mutant.failure.id} came to {dict(found)} on a stack without it"
        assert found.keys() <= {"held", "unavailable"}, f"the guards came to {dict(found)} on a stack without it"
        return
    assert found[mutant.verdict], (
        f"{mutant.name} should make a test of {mutant.failure.id} {mutant.verdict}; its tests came to "
        f"{dict(found) or 'nothing: none ran'}"
    )


@pytest.mark.parametrize("failure", DOCUMENTED, ids=lambda failure: failure.id)
def test_every_failure_has_its_mutants(failure):
    mutants = [mutant for mutant in MUTANTS if mutant.failure == failure and mutant.verdict != "held"]
    verdicts = Counter(mutant.verdict for mutant in mutants)
    assert verdicts["regressed"] >= 1, "a mutant breaks what a guard checks"
    if failure.subject:
        assert verdicts["regressed"] <= 4, "one or two mutants break the remedy, one or two a trainer's own key"
    assert verdicts["changed"] == 1, "one mutant makes it fail otherwise"
    # What is absent on the locked stack must be seen where it is not.
    assert verdicts.keys() & {"absent", "reproduced", "returned"}, "no mutant is a stack that differs in having it"
