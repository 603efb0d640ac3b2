"""No scenario is a test that cannot fail: under each of its mutants it must come to the verdict meant for that.

For one failure: ``pytest tests/stack/scenarios/test_mutants.py -k ragged-index-lost``; for a folder ``-k batch/``; of a
remedy's promises, ``-k restore_ragged``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict

import pytest
from installed import TESTS

from mutants import CATALOGUE, MUTANTS
from promises.broken import SHARED
from promises.equivalent import EQUIVALENT

# Every id with tests, but for the rows of the steps, whose mutants are in test_training_mutants.py.
DOCUMENTED = [failure.id for failure in CATALOGUE.values() if failure.subject]
WRITTEN = [mutant for mutant in MUTANTS if not mutant.promise]
#: Of each remedy, by its name and the failures that it is for: the mutants that break a promise of it.
PROMISED = defaultdict(list)
for mutant in MUTANTS:
    if mutant.promise:
        PROMISED[CATALOGUE[mutant.failure].subject].append(mutant)


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """How often each chosen mutant brought which verdict: one run of their scenarios, so that the stack starts once."""
    chosen = []
    for item in request.session.items:
        if item.path == request.path:
            chosen += [item.callspec.params.get("mutant")] if "mutant" in item.fixturenames else []
            chosen += PROMISED[item.callspec.params["subject"]] if "subject" in item.fixturenames else []
    names = sorted({mutant.folder for mutant in chosen})
    folder = tmp_path_factory.mktemp("mutants")
    junit = folder / "junit.xml"
    (folder / "chosen").write_text("\n".join({mutant.key for mutant in chosen}))
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "-q", "-p", "mutants", f"--junitxml={junit}"]
    command += ["--pyargs", *(f"pytest_rlregress.scenarios.{name}" for name in names)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), SHARED: str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = defaultdict(Counter)
    for case in ET.parse(junit).getroot().iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if "mutant" in said:  # not of a test that is unavailable here
            found[said["mutant"]][said.get("rlregress_verdict", "none")] += 1
            found[said["mutant"]]["mutated"] += "mutated" in said
    print(done.stdout)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mutant", WRITTEN, ids=[f"{mutant.folder}/{mutant.failure}-{mutant.name}" for mutant in WRITTEN]
)
def test_mutant_is_seen(verdicts, mutant):
    found = Counter({verdict: times for verdict, times in verdicts[mutant.key].items() if verdict != "mutated"})
    if mutant.verdict == "held":
        assert found["held"], f"the guards of {mutant.failure} came to {dict(found)} on a stack without it"
        assert found.keys() <= {"held", "unavailable"}, f"the guards came to {dict(found)} on a stack without it"
        return
    assert found[mutant.verdict], (
        f"{mutant.name} should make a test of {mutant.failure} {mutant.verdict}; its tests came to "
        f"{dict(found) or 'nothing: none ran'}"
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "subject",
    PROMISED,
    ids=["-".join(dict.fromkeys([name, *(one.failure for one in found)])) for name, found in PROMISED.items()],
)
def test_every_promise_is_held(verdicts, subject):
    unheld, untried, superfluous = [], [], [name for one, name in EQUIVALENT if one == subject]
    for mutant in {mutant.key: mutant for mutant in PROMISED[subject]}.values():
        found, promise = verdicts[mutant.key], mutant.promise
        if found["regressed"] + found["crashed"] + found["hung"]:
            continue
        if not found["held"]:
            untried.append(promise.name)
        elif promise.name in superfluous:
            superfluous.remove(promise.name)
        elif found["mutated"] or promise.must_show:
            unheld.append(f"{subject}: {promise.name}: no guard fails for it: {promise.words}")
    assert not untried, f"{subject}: no guard was run with {', '.join(untried)} broken"
    if unheld:
        pytest.fail("\n".join(unheld), pytrace=False)
    assert not superfluous, f"promises/equivalent.py names {', '.join(superfluous)} of {subject}: there is no need to"


@pytest.mark.parametrize("failure", DOCUMENTED)
def test_every_failure_has_its_mutants(failure):
    verdicts = {mutant.verdict for mutant in MUTANTS if mutant.failure == failure}
    assert "regressed" in verdicts, "no mutant breaks the remedy"
    assert "changed" in verdicts, "no mutant makes it fail otherwise"
    # What is absent on the locked stack must be seen where it is not.
    assert verdicts & {"absent", "reproduced", "returned"}, "no mutant is a stack that differs in having the failure"
