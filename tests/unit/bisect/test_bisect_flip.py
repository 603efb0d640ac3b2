"""What two ends say: the test that is good at one and bad at the other, or which end is not what it is called."""

from __future__ import annotations

import pytest
from made_trials import make_run

from pytest_rlregress.commands.bisect.follow import NoAnswer, find_flipping_test
from pytest_rlregress.failures.observations import Observation
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.trials.trial import Trial

OUTCOMES = {
    "passed": Outcome("passed"),
    "failed": Outcome("failed", exceptions=("builtins.ValueError",), message="no answer"),
    "otherwise": Outcome("failed", exceptions=("builtins.KeyError",), message="'answer'"),
    "unavailable": Outcome("skipped", message="needs a GPU"),
}


def trial(label, *runs, trouble="", hardware="cpu"):
    """A trial of these runs, each the verdicts of its tests: ``{"a": "passed"}``."""

    def observation(test, word):
        return Observation(f"t.py::{test}", OUTCOMES[word], "failed" if word == "otherwise" else word)

    def run(verdicts):
        seen = [observation(test, word) for test, word in verdicts.items()]
        return make_run(seen, hardware, trouble="" if verdicts else "no such test here: t.py")

    return Trial(label, None, tuple(map(run, runs)), trouble)


def test_follows_the_first_test_that_flips():
    good = trial("old", {"a": "passed", "b": "failed", "c": "passed", "d": "passed"})
    bad = trial("new", {"a": "passed", "b": "failed", "c": "failed", "d": "otherwise"})
    ends = find_flipping_test(good, bad, None)
    assert ends.test == "t.py::c"
    assert ends.bad.outcome.message == "no answer"
    assert ends.others == ("t.py::d",)
    assert ends.hardware == "cpu"


def test_follows_the_reproduces_side_if_the_guards_flip_too():
    def side(label, **verdicts):
        sides = (("guards", "guard", "x"), ("guards", "other", "y"), ("reproduces", "act", "x"))
        seen = [
            Observation(f"t.py::{name}", OUTCOMES["passed"], verdicts[name], failure=failure, side=kind)
            for kind, name, failure in sides
        ]
        return Trial(label, None, (make_run(seen),))

    def follow(**verdicts):
        good = side("old", guard="held", other="held", act="absent")
        return find_flipping_test(good, side("new", **verdicts), None)

    ends = follow(guard="regressed", other="held", act="reproduced")
    assert (ends.test, ends.others) == ("t.py::act", ("t.py::guard",))
    assert follow(guard="regressed", other="regressed", act="reproduced").test == "t.py::other"  # of another failure
    assert follow(guard="regressed", other="held", act="absent").test == "t.py::guard"


@pytest.mark.parametrize(
    ("good", "bad", "kind", "first", "reason"),
    [
        ([{"a": "passed"}], [{"a": "passed"}], "passes at both", "old", ""),
        ([{"a": "failed"}], [{"a": "failed"}], "fails at both", "old", ""),
        ([{"a": "failed"}], [{"a": "otherwise"}], "fails at both", "old", ""),
        ([{"a": "failed"}], [{"a": "passed"}], "swapped", "old", ""),
        ([{"a": "passed"}, {"a": "failed"}], [{"a": "failed"}] * 2, "flaky end", "old", "flaky: 1 good, 1 bad of 2"),
        ([{"a": "passed"}] * 2, [{"a": "failed"}, {"a": "passed"}], "flaky end", "new", "flaky: 1 good, 1 bad of 2"),
        ([{"a": "passed"}] * 2, [{"a": "failed"}, {"a": "otherwise"}], "flaky end", "new", "flaky: 1 bad, 1 unknown"),
        ([{"a": "unavailable"}], [{"a": "failed"}], "untested end", "old", "did not run: needs a GPU"),
        ([{"a": "passed"}], [{"a": "unavailable"}], "untested end", "new", "did not run: needs a GPU"),
        ([{}], [{"a": "failed"}], "untested end", "old", "no such test here: t.py"),
        ([{"a": "passed"}], [{"b": "failed"}], "untested end", "old", "no such test here"),
    ],
)
def test_explains_ends_with_unexpected_outcomes(good, bad, kind, first, reason):
    with pytest.raises(NoAnswer) as raised:
        find_flipping_test(trial("old", *good), trial("new", *bad), None)
    why = raised.value.why
    assert (why.kind, why.first) == (kind, first)
    assert why.reason.startswith(reason)


@pytest.mark.parametrize(
    ("good", "bad", "first", "reason"),
    [
        ({"hardware": "h100 of NVIDIA H100"}, {}, "old", "hardware changed: h100 of NVIDIA H100"),
        ({}, {"trouble": "no solution"}, "new", "no solution"),
    ],
    ids=["a GPU that is gone", "cannot be built"],
)
def test_rejects_ends_that_were_tested_differently(good, bad, first, reason):
    with pytest.raises(NoAnswer) as raised:
        find_flipping_test(trial("old", {"a": "passed"}, **good), trial("new", {"a": "failed"}, **bad), None)
    why = raised.value.why
    assert (why.kind, why.first) == ("untested end", first)
    assert why.reason.startswith(reason)
