"""The numbers of TRL's own step must be those recorded on exactly this hardware and stack: docs/goldens.md."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.act import act


@pytest.mark.guards("golden")
@pytest.mark.needs("trl-trainer", "vllm-engine")
@pytest.mark.isolated(group="trl")
def test_trls_numbers_are_the_recorded_ones(trl_step, kept_runs, hardware, progress, request):
    """Those of the run that the step's own test made, where it was before this one."""
    from pytest_rlregress.fixtures.trl_step import NAME
    from pytest_rlregress.goldens.golden_step import compare_or_record, skip_unrecorded
    from pytest_rlregress.goldens.steps import make_trl

    skip_unrecorded(request.node, NAME)
    with act():
        step = make_trl(trl_step, kept_runs, hardware.step["logprob_tolerance"])
        compare_or_record(step, request.node, progress)
