"""The numbers of the step on two processes must be those recorded on this hardware and stack: docs/goldens.md."""

from __future__ import annotations

import pytest


@pytest.mark.guards("golden")
@pytest.mark.needs("vllm-engine", "tensordict", "peft")
@pytest.mark.isolated(group="fsdp-step")
def test_two_processes_numbers_are_the_recorded_ones(fsdp_step, progress, request):
    """Those of the runs that the step's own tests made, where they were before this one."""
    from pytest_rlregress.goldens.golden_step import compare_or_record
    from pytest_rlregress.goldens.recordable_fsdp import RecordableFsdp

    compare_or_record(RecordableFsdp(fsdp_step), request.node, progress)
