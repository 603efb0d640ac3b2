"""The step's numbers must be those recorded on exactly this hardware and stack: docs/goldens.md."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.act import act


@pytest.mark.guards("golden")
@pytest.mark.needs("vllm-engine")
def test_the_numbers_are_the_recorded_ones(trainer_step, progress, request):
    from pytest_rlregress.goldens.golden_step import compare_or_record, skip_unrecorded
    from pytest_rlregress.goldens.steps import make_miniature
    from pytest_rlregress.records.measurements import MINIATURE

    skip_unrecorded(request.node, MINIATURE)
    with act():
        compare_or_record(make_miniature(trainer_step()), request.node, progress)
