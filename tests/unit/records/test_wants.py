"""What a test that gave no verdict was in want of."""

from __future__ import annotations

import pytest

from pytest_rlregress.records.record_types import HarnessProperties, RecordedTest
from pytest_rlregress.records.wants import Want, read_want

REASONS = {
    "needs a GPU, this run is --hw=cpu": Want("a GPU", absent=True),
    "needs 2 GPUs, there are 1": Want("2 GPUs, there are 1", absent=True),
    "needs wsl2, this is Linux": Want("wsl2", absent=True),
    "megatron is not installed: pip install megatron-core": Want("megatron", absent=True),
    "verl-trainer is broken: ImportError: cannot import name 'X' from 'y'": Want("verl-trainer that works"),
    "verl 0.7.1 can't be driven this way: KeyError: 'a'": Want("a way to drive verl 0.7.1", "verl 0.7.1"),
    "torch-memory-saver can't be driven this way: OSError": Want("a way to drive torch-memory-saver"),
    "needs verl.plugin, which verl 0.6.1 doesn't have": Want("verl.plugin", "verl 0.6.1"),
    "gives run_ppo a task runner, for which verl 0.4.1 has no place": Want("gives run_ppo a task runner", "verl 0.4.1"),
    "no golden of the trl-step for this key (any, AVX2)": Want("no golden of the trl-step for this key"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_says_what_is_wanting(reason):
    noted = HarnessProperties(verdict="unavailable", note=reason)
    for test in (
        RecordedTest("x::a", "skipped", "skipped", 1, "x", noted),
        RecordedTest("x::a", "skipped", "skipped", 1, "x", message=reason),
    ):
        assert read_want(test) == REASONS[reason]
