"""``python -O``: what users call to check something says that it is wrong there, too."""

from __future__ import annotations

import subprocess
import sys

import pytest

WRONG = {
    "a loss": """
from pytest_rlregress.agreement.gradients import gradient_of
def loss(batch):
    ratio = (batch.log_probs - batch.old_log_probs).exp()
    return -(ratio * batch.advantages * batch.mask).sum() / batch.mask.sum() / batch.parts
gradient_of(loss, "token-mean").unchanged_by("micro-batches")
""",
    "a gradient": """
from pytest_rlregress.agreement.gradients import gradient_of
gradient_of(lambda batch: batch.log_probs.sum(), "token-mean")
""",
    "steps": """
from pytest_rlregress.fixtures import step_record
step_record.check([], 1, 0.1)
""",
    "a resumed step": """
from pytest_rlregress.fixtures import fsdp_record
fsdp_record.check_resumed({"loss": 0.5})
""",
    "what verl left": """
from types import SimpleNamespace
from pytest_rlregress.fixtures import step_record, verl_record
step_record.check = lambda *_: None
verl_record.check(SimpleNamespace(steps=[], left=["ray"]), 1, 0.1)
""",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_checks_hold_where_assert_statements_are_left_out(text):
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-O", "-c", text], capture_output=True, text=True)
    assert "AssertionError: " in done.stderr, done.stderr
    assert done.returncode == 1
