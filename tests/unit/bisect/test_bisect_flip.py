"""What two ends say: the test that is good at one and bad at the other, or which end is not what it is called."""

from __future__ import annotations

import pytest
from made_trials import make_run

from pytest_rlregress.commands.bisect.answer import NotFound
from pytest_rlregress.commands.bisect.follow import find_flipping_test
from pytest_rlregress.commands.trials.trial import Observation, Trial
from pytest_rlregress.failures.verdicts import Outcome

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
        return make_run(
            {one.test: one for one in seen}, hardware, trouble="" if verdicts else "no such test here: t.py"
        )

    return Trial(label, None, tuple(map(run, runs)), trouble)


def test_the_first_test_that_flips_is_followed():
    good = trial("old", {"a": "passed", "b": "failed", "c": "passed", "d": "passed"})
    bad = trial("new", {"a": "passed", "b": "failed", "c": "failed", "d": "otherwise"})
    ends = find_flipping_test(good, bad)
    assert ends.test == "t.py::c"
    assert ends.bad.outcome.message == "no answer"
    assert ends.others == ("t.py::d",)
    assert ends.hardware == "cpu"


def test_the_reproduces_side_is_followed_where_the_guards_flip_too():
    def side(label, **verdicts):
        sides = (("guards", "guard", "x"), ("guards", "other", "y"), ("reproduces", "act", "x"))
        seen = [
            Observation(f"t.py::{name}", OUTCOMES["passed"], verdicts[name], failure=failure, side=kind)
            for kind, name, failure in sides
        ]
        return Trial(label, None, (make_run({one.test: one for one in seen}),))

    good, bad = side("old", guard="held", other="held", act="absent"), ("regressed", "reproduced")
    ends = find_flipping_test(good, side("new", guard=bad[0], other="held", act=bad[1]))
    assert (ends.test, ends.others) == ("t.py::act", ("t.py::guard",))
    ends = find_flipping_test(good, side("new", guard=bad[0], other=bad[0], act=bad[1]))
    assert ends.test == "t.py::other"  # of another failure: the first one, as ever
    ends = find_flipping_test(good, side("new", guard=bad[0], other="held", act="absent"))
    assert ends.test == "t.py::guard"


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
def test_ends_that_are_not_what_they_are_called(good, bad, kind, first, reason):
    found = find_flipping_test(trial("old", *good), trial("new", *bad))
    assert isinstance(found, NotFound)
    assert (found.kind, found.first) == (kind, first)
    assert found.reason.startswith(reason)


def test_a_gpu_that_is_gone_at_one_end():
    found = find_flipping_test(
        trial("old", {"a": "passed"}, hardware="h100 of NVIDIA H100"), trial("new", {"a": "failed"})
    )
    assert (found.kind, found.first) == ("untested end", "old")
    assert found.reason.startswith("hardware changed: h100 of NVIDIA H100")


def test_an_end_that_cannot_be_built():
    found = find_flipping_test(trial("old", {"a": "passed"}), trial("new", trouble="no solution"))
    assert found == NotFound("untested end", "new", reason="no solution")
