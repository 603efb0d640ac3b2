"""What an upgrade does to each test, to each documented failure, and to the numbers of the training step."""

from __future__ import annotations

import dataclasses
import io
import itertools
from contextlib import contextmanager

import pytest
from made_trials import make_run
from msgspec.structs import replace

from pytest_rlregress.commands.upgrade.comparison import (
    Effect,
    compare_trials,
    is_doubtful,
    is_driven,
    list_gone,
    summarize_effects,
)
from pytest_rlregress.commands.upgrade.preview import Baseline
from pytest_rlregress.environments import RequestError
from pytest_rlregress.failures.observations import Observation
from pytest_rlregress.failures.verdicts import Outcome, Rank, Verdict, rank
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.trials.pytest_run import TrialRequest
from pytest_rlregress.trials.search import State
from pytest_rlregress.trials.trial import Candidate, Progress, Trial, TrialFolder, TrialRunner

TEST = "rollout/test_x.py::test_y"


def seen(verdict, test=TEST, failure="overflow", side="guards", message="it broke"):
    kinds = {"held": "passed", "absent": "passed", "passed": "passed", "unavailable": "skipped", "blocked": "skipped"}
    outcome = Outcome(kinds.get(verdict, "failed"), message=message)
    return Observation(test, outcome, verdict, "E  it broke", failure, side)


def trial(*observations, hardware="cpu", **more):
    """A trial of one run for each list of observations."""
    runs = [one if isinstance(one, tuple) else (one,) for one in observations]
    return Trial("after", None, tuple(make_run({one.test: one for one in some}, hardware, **more) for some in runs))


def effect(before, after):
    """The effect on one test, of these verdicts before and after; several: of several runs."""
    before, after = (words if isinstance(words, list) else [words] for words in (before, after))
    (found,) = compare_trials(trial(*map(seen, before)), trial(*map(seen, after)))
    return found.effect


def test_tests_that_got_worse_by_one_cause_are_one_row():
    frames = ("/venv/lib/python3.11/site-packages/verl/utils/model.py:<module>",)
    broken = Outcome("failed", exceptions=("builtins.ImportError",), message="no X in transformers", frames=frames)
    places = [("overflow", "guards"), ("overflow", "reproduces"), ("pad", "guards")]
    before = [seen("held", f"{name}.py::{side}", name, side) for name, side in places]
    after = [dataclasses.replace(one, verdict="regressed", outcome=broken) for one in before]
    [row] = summarize_effects(compare_trials(trial(tuple(before)), trial(tuple(after))))
    cause = "ImportError: no X in transformers (in verl/utils/model.py:<module>)"
    assert (row.name, row.side, row.before, row.after, row.effect) == (cause, "", "held 3", "regressed 3", Effect.WORSE)


UNTRIED = "not tried with verl 0.10.0 (tried: 0.6.1 to 0.9.1)"


@pytest.mark.parametrize(("before", "expected"), [("held", Effect.UNTRIED), ("regressed", Effect.BAD_BEFORE)])
def test_worse_with_releases_that_were_not_tried_does_not_forbid(before, expected):
    after = dataclasses.replace(seen("regressed"), untried=UNTRIED)
    (found,) = compare_trials(trial(seen(before)), trial(after))
    assert (found.effect, found.effect.forbids) == (expected, False)
    assert is_doubtful([found]) == (expected is Effect.UNTRIED)
    if expected is Effect.UNTRIED:
        assert found.reason.startswith(f"{UNTRIED}: ")
        assert found.text


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("held", "held", Effect.SAME),
        ("held", "regressed", Effect.WORSE),
        ("held", "crashed", Effect.WORSE),
        ("held", "hung", Effect.WORSE),
        ("passed", "failed", Effect.WORSE),
        ("passed", "uncollected", Effect.WORSE),
        ("reproduced", "changed", Effect.WORSE),
        ("absent", "reproduced", Effect.WORSE),
        ("absent", "returned", Effect.WORSE),
        ("reproduced", "absent", Effect.ABSENT),
        ("reproduced", "reproduced", Effect.SAME),
        ("regressed", "held", Effect.BETTER),
        ("changed", "reproduced", Effect.BETTER),
        ("regressed", "regressed", Effect.BAD_BEFORE),
        ("regressed", "crashed", Effect.BAD_BEFORE),
        ("regressed", "unavailable", Effect.BAD_BEFORE),
        ("regressed", "blocked", Effect.BAD_BEFORE),
        ("blocked", "blocked", Effect.BAD_BEFORE),
        ("blocked", "held", Effect.BETTER),
        ("held", "blocked", Effect.BROKEN),
        ("reproduced", "blocked", Effect.BROKEN),
        ("unavailable", "blocked", Effect.BROKEN),
        ("held", "unavailable", Effect.LOST),
        ("reproduced", "unavailable", Effect.LOST),
        ("unavailable", "unavailable", Effect.SAME),
        ("unavailable", "held", Effect.GAINED),
        ("unavailable", "reproduced", Effect.GAINED),
        ("unavailable", "regressed", Effect.WORSE),
        # Of several runs the worst counts.
        (["held", "held"], ["held", "regressed"], Effect.WORSE),
        (["held", "regressed"], ["held", "held"], Effect.BETTER),
        (["held", "regressed"], ["regressed", "held"], Effect.BAD_BEFORE),
        (["held", "held"], ["held", "blocked"], Effect.BROKEN),
    ],
)
def test_each_pair_of_verdicts_has_its_effect(before, after, expected):
    assert effect(before, after) is expected


def test_only_new_failures_forbid_an_upgrade_for_all_pairs_of_verdicts():
    for before, after in itertools.product(Verdict, repeat=2):
        bad_before = before.rank is Rank.FAILING or before is Verdict.BLOCKED
        bad_after = after.rank is Rank.FAILING or after is Verdict.BLOCKED
        comes_back = before is Verdict.ABSENT and after is Verdict.REPRODUCED
        held_then_documented = rank(before) is Rank.GOOD and rank(after) is Rank.DOCUMENTED
        expected = (bad_after and not bad_before) or comes_back or held_then_documented
        assert effect(before.value, after.value).forbids is expected, (before, after)


def test_missing_test_is_lost_and_unimportable_file_is_worse():
    other = seen("held", "rollout/test_z.py::test_z", None, None)
    found = compare_trials(trial((seen("held"), other)), trial(other))
    assert {(one.name, one.effect, one.after) for one in found} == {
        ("overflow", Effect.LOST, "not seen"),
        (other.test, Effect.SAME, "held"),
    }
    file = seen("uncollected", "rollout/test_x.py", None, None)
    found = {one.name: one.effect for one in compare_trials(trial((seen("held"), other)), trial((file, other)))}
    assert found == {"overflow": Effect.WORSE, other.test: Effect.SAME}


def test_verdicts_are_counted_by_failure_and_side_and_the_gravest_comes_first():
    before = trial(
        (
            seen("held", "a::1"),
            seen("held", "a::2"),
            seen("reproduced", "a::3", side="reproduces"),
            seen("passed", "mine::1", None, None),
            seen("held", "b::1", "other"),
        )
    )
    after = trial(
        (
            seen("held", "a::1"),
            seen("regressed", "a::2"),
            seen("absent", "a::3", side="reproduces"),
            seen("passed", "mine::1", None, None),
            seen("blocked", "b::1", "other", message="vllm does not work here:\nImportError"),
        )
    )
    rows = summarize_effects(compare_trials(before, after))
    assert [(row.name, row.side, row.before, row.after, row.effect) for row in rows] == [
        ("other", "guards", "held 1", "blocked 1", Effect.BROKEN),
        ("overflow", "guards", "held 2", "held 1, regressed 1", Effect.WORSE),
        ("overflow", "reproduces", "reproduced 1", "absent 1", Effect.ABSENT),
    ]
    assert rows[0].reason == "vllm does not work here: ImportError"
    assert rows[1].verdict == "regressed"
    assert rows[1].text == "E  it broke"


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        (["reproduced", "reproduced"], ["absent", "absent"], True),
        (["reproduced", "absent"], ["absent", "absent"], True),
        (["reproduced", "reproduced"], ["absent", "reproduced"], False),
        (["reproduced", "reproduced"], ["absent", "changed"], False),
        (["reproduced", "reproduced"], ["absent", "unavailable"], False),
        (["reproduced", "unavailable"], ["absent", "unavailable"], True),
        (["absent", "absent"], ["absent", "absent"], False),
    ],
)
def test_workaround_is_removable_if_no_test_reproduces_its_failure(before, after, gone):
    ends = [
        trial(tuple(seen(word, f"a::{at}", side="reproduces") for at, word in enumerate(words)))
        for words in (before, after)
    ]
    assert list_gone(compare_trials(*ends)) == (("overflow",) if gone else ())


def test_unavailable_tests_drive_nothing():
    effects = compare_trials(trial(seen("held")), trial(seen("unavailable")))
    assert is_driven(effects, after=False)
    assert not is_driven(effects, after=True)


@contextmanager
def baseline_of(folder, here, **others):
    """A baseline whose trials, and those of others by their label, are known from before."""
    lock = Lock({})
    with TrialFolder.open(folder) as known:
        for label, one in {"here": here, **others}.items():
            known.add(replace(one, label=label))
        limits = {"repeat": 1, "timeout": 1}
        runner = TrialRunner(None, known, TrialRequest(), Progress(io.StringIO()), **limits)
        yield Baseline(Candidate("here", lambda: lock, lock), runner)


@pytest.mark.parametrize(
    ("after", "state", "reason"),
    [
        (trial(seen("held")), State.GOOD, ""),
        (trial(seen("regressed")), State.BAD, "overflow (guards): held 1 -> regressed 1"),
        (trial(seen("blocked", message="vllm is broken: no")), State.BAD, "held 1 -> blocked 1: vllm is broken: no"),
        (trial(seen("unavailable")), State.UNKNOWN, "none of the tests can be driven there"),
        (trial(seen("regressed"), trouble="the run had no end"), State.BAD, "regressed 1"),
        (trial(seen("held"), trouble="the run had no end"), State.UNKNOWN, "the run had no end"),
        (trial(seen("regressed"), hardware="h100"), State.UNKNOWN, "the hardware changed: h100, before it was cpu"),
        (Trial("after", trouble="no wheel"), State.UNKNOWN, "no wheel"),
    ],
)
def test_judges_a_set_of_upgrades(after, state, reason, tmp_path):
    with baseline_of(tmp_path, trial(seen("held")), after=after) as baseline:
        tried = baseline.compare(Candidate("after", lambda: Lock({}), Lock({})))
    assert tried.state is state
    assert reason in tried.reason


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (trial(seen("held"), trouble="no such test"), "the tests cannot be run here: no such test"),
        (trial(seen("unavailable")), "none of the tests can be driven here"),
    ],
)
def test_rejects_a_baseline_that_cannot_be_run(before, why, tmp_path):
    with pytest.raises(RequestError, match=why), baseline_of(tmp_path, before):
        pass
