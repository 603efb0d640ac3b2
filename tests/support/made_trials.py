"""Runs and trials without a pytest: the record that such a run would have written."""

from __future__ import annotations

from pytest_rlregress.records import answer, record_types
from pytest_rlregress.trials.pytest_run import TrialRun


def make_run(observations=(), hardware="", seconds=0.0, trouble=""):
    """A run that came to these observations; ``hardware`` in words."""
    tests = [_record(one) for one in (observations.values() if isinstance(observations, dict) else observations)]
    extra = record_types.RunExtra(record_types.FORMAT, record_types.InstalledStack([]))
    extra.hardware.profile = hardware or None
    record = answer.with_tests(record_types.begun(0, extra), tests, "complete", 0)
    return TrialRun(record, seconds, trouble)


def _record(seen):
    about = {"failure": seen.failure or "", "side": seen.side or "", "verdict": seen.verdict, "untried": seen.untried}
    extra = record_types.HarnessProperties(**about, outcome=seen.outcome, named=",".join(seen.named))
    return record_types.RecordedTest(seen.test, "other", "passed", 0, "", extra, trace=seen.text)
