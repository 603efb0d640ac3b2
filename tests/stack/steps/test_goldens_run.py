"""Goldens on the real step: one is recorded, the same step agrees with it, and one that is off by little does not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from pytest_rlregress.goldens.golden import read

# As few runs and steps as there can be; the shipped golden is measured from more.
PLUGIN = """
from functools import partial

from pytest_rlregress.goldens import steps

steps.make_miniature = partial(steps.make_miniature, steps=2, repeated=1, perturbed=1, other_seeds=1)
"""
MUTANTS = """
import json
import pytest

pytestmark = pytest.mark.needs("torch", "transformers", "tensordict", "ray", "vllm")
PROPERTY = "rlregress_golden"


@pytest.fixture
def settled(training_step, request, progress):
    \"\"\"``settled()``: what came of a comparison.\"\"\"
    from pytest_rlregress.goldens.golden_step import compare_or_record
    from pytest_rlregress.goldens.steps import make_miniature

    def settled():
        try:
            compare_or_record(make_miniature(training_step), request.node, progress)
        finally:
            properties = request.node.user_properties
            found = json.loads(dict(properties)[PROPERTY])
            properties[:] = [pair for pair in properties if pair[0] != PROPERTY]  # not what this run is about
        return found

    return settled


def test_loss_that_is_off_by_a_thousandth(settled, monkeypatch):
    from pytest_rlregress.fixtures import training_step as module

    sound = module.policy_loss
    monkeypatch.setattr(module, "policy_loss", lambda *args: sound(*args) * (1 + 1e-3))
    with pytest.raises(AssertionError, match=r"not as in the golden: token: loss of step [12] is .*: \\|Δ\\|"):
        settled()


def test_engine_that_rounds(settled, monkeypatch):
    from pytest_rlregress.fixtures import training_step as module

    def rounding(model, engine):
        import ray
        import torch

        weights = model.state_dict().items()
        coarse = {name: p.detach().to(torch.bfloat16).float() for name, p in weights}
        ray.get(engine.load_weights.remote(coarse))

    monkeypatch.setattr(module, "sync", rounding)
    with pytest.raises(AssertionError, match="(token|sequence): disagreement_before of step [12] is"):
        settled()


def test_another_key(settled, monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.12.1")
    with pytest.raises(pytest.skip.Exception, match=r"no golden .*torch 2.12.*nearest, not used: .*2.13"):
        settled()
"""


GIT = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
GOLDEN = "pytest_rlregress.scenarios.training.golden.test_golden"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``run(*args)``: pytest in a checkout whose goldens are in ``kept``; its output and the tests of its record."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nrlregress_goldens = kept\n")
    (tmp_path / "few.py").write_text(PLUGIN)
    (tmp_path / "test_mutants.py").write_text(MUTANTS)
    (tmp_path / ".gitignore").write_text("__pycache__\nrecords\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*GIT, *command], check=True, cwd=tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)

    def run(*args):
        before = set(tmp_path.glob("records/*.json"))
        command = [sys.executable, "-m", "pytest", "--hw=cpu", "-p", "few", "-p", "no:cacheprovider", *args]
        command += ["--rl-record-dir=records", "--pyargs", GOLDEN]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=560)
        print(done.stdout, done.stderr)
        [record] = set(tmp_path.glob("records/*.json")) - before
        tests = {test["name"].rpartition("::")[2]: test for test in json.loads(record.read_text())["results"]["tests"]}
        return done, tests

    return run


@pytest.mark.nightly
def test_recorded_golden_is_compared_in_the_next_run(run, tmp_path):
    done, tests = run("--rl-update-goldens")
    assert done.returncode == 0
    [path] = tmp_path.glob("kept/*.json")
    assert f"recorded: {path}" in " ".join(done.stdout.split())
    measured = tests["test_the_numbers_are_the_recorded_ones"]["extra"]["measured"]
    golden = read(path)
    assert asdict(golden.key) == measured["key"]
    assert golden.runs == measured["runs"]
    assert golden.key.attention == "CPU_ATTN"
    assert all(limits["max"] > 0 for name, limits in golden.tolerances["same"].items() if name != "reward")

    done, tests = run("-v", "test_mutants.py")
    assert done.returncode == 0
    compared = tests.pop("test_the_numbers_are_the_recorded_ones")["extra"]
    assert (compared["verdict"], compared["golden"]["state"]) == ("held", "agrees")
    assert compared["golden"]["used"] == {"max": 0.0, "drift": 0.0}
    assert f"agrees: {golden}; of its tolerance used: max |Δ| 0%, mean Δ 0%" in " ".join(done.stdout.split())
    tests = {name: test for name, test in tests.items() if test["name"].startswith("test_mutants.py")}
    assert len(tests) == 3
    assert {test["status"] for test in tests.values()} == {"passed"}
