"""The test of a loss that docs/losses.md prints comes out as it says there."""

from __future__ import annotations

import re

import documents


def test_documented_loss_gives_the_documented_error(run):
    [(name, body)] = documents.files("losses.md").items()
    result = run({name.removesuffix(".py"): body}, name)
    result.assert_outcomes(passed=1, failed=1)
    [printed] = re.findall(r"^    (AssertionError: .*)$", documents.text("losses.md"), re.MULTILINE)
    result.stdout.fnmatch_lines([f"E * {printed}"])


def test_document_has_every_name():
    from pytest_rlregress.agreement.gradients import WEIGHTS
    from pytest_rlregress.agreement.policy_batch import CHANGES

    rows = re.findall(r'^\| `"?([\w-]+)"?` \|', documents.text("losses.md"), re.MULTILINE)
    assert rows == ["expected", *WEIGHTS, *CHANGES]
