"""What changed together is told together: the tests of one cause, or of one failure's side."""

from __future__ import annotations

from types import SimpleNamespace

from pytest_rlregress.records.changes import Change, Kind
from pytest_rlregress.records.history import Point
from pytest_rlregress.records.stories import find_common_cause, group_alike

NIGHT = SimpleNamespace(night=None)
CAUSE = "ImportError: no X (in verl/utils/model.py:<module>)"


def got_worse(test, failure, side, cause=""):
    before, word = {"guards": ("held", "regressed"), "reproduces": ("reproduced", "changed")}[side]
    good, bad = Point(NIGHT, before, failure, side), Point(NIGHT, word, failure, side, cause=cause)
    return Change(Kind.REGRESSION, test, good, bad, (bad,))


def test_tests_of_one_cause_are_one_group():
    by_cause = [got_worse("a", "pad", "guards", CAUSE), got_worse("b", "overflow", "reproduces", CAUSE)]
    other = [got_worse("c", "pad", "guards"), got_worse("d", "pad", "guards", "KeyError (in ray/a.py:f)")]
    groups = group_alike([by_cause[0], *other, by_cause[1]])
    assert groups == [by_cause, other]
    assert [find_common_cause(group) for group in groups] == [CAUSE, ""]


def test_a_cause_of_one_side_is_told_by_its_failure():
    group = [got_worse("a", "pad", "guards", CAUSE), got_worse("b", "pad", "guards", CAUSE)]
    assert group_alike(group) == [group]
    assert find_common_cause(group) == ""
