"""A real run that is watched: what its verdict needs, and what is said of it."""

from __future__ import annotations

import pytest
from rehearsed import make_events, make_record

from pytest_rlregress.commands.rehearse import as_is_unseen, show
from pytest_rlregress.commands.rehearse.judge import CORE, judge
from pytest_rlregress.util.coverage import Result

UNSEEN = {**as_is_unseen.ALWAYS, "reference": "beta is 0: there is no reference model"}


def make_real(*records, uses_engine=True):
    start = {"kind": "as_is", "uses_engine": uses_engine, "processes": 1}
    return [start, *make_events(*records), {"kind": "cost", "watching": 0.02, "seconds": 10.0}]


def make_step(number, **changed):
    not_seen = {**UNSEEN, **changed.pop("not_seen", {})}
    return make_record(number, engine_prompts=None, engine_completions=None, not_seen=not_seen, **changed)


def test_two_watched_steps_are_sound():
    judged = judge(make_real(make_step(1), make_step(2)))
    assert judged.result is Result.CLEAN
    text = show.as_text("trl grpo", judged, [])
    assert text.startswith("as it is: nothing was made small\n")
    assert "watching cost 0.20 % of a step" in text
    assert text.endswith("trl grpo: 2 steps of your trainer are sound in all that was watched")


def test_each_check_of_a_rehearsal_is_named_with_a_reason():
    judged = judge(make_real(make_step(1), make_step(2)))
    unchecked = {row.check: row.why for row in judged.rows if row.status == "not checked"}
    assert unchecked.keys() >= as_is_unseen.ALWAYS.keys() | as_is_unseen.OF_RUN.keys()
    assert all(unchecked.values())


@pytest.mark.parametrize("name", [*CORE, "agreement"])
def test_what_is_indispensable(name):
    judged = judge(make_real(*(make_step(number, not_seen={name: "for a reason"}) for number in (1, 2))))
    assert judged.result is Result.PARTIAL
    assert name in judged.coverage.missing


def test_without_an_engine_nothing_agrees():
    steps = (make_step(number, not_seen={"agreement": "there is no engine"}) for number in (1, 2))
    assert judge(make_real(*steps, uses_engine=False)).result is Result.CLEAN


def test_a_warm_up_is_no_finding_and_no_green():
    still = {"update": "the learning rate is 0 in this step, as in a warm-up's first"}
    judged = judge(make_real(make_step(1, learning_rate=0.0, not_seen=still), make_step(2)))
    assert judged.result is Result.PARTIAL
    assert "more --steps may have both" in judged.rows[0].why


@pytest.mark.parametrize(
    ("check", "changed"),
    [
        ("advantages", {"advantages": (0.7, -0.7, 0.7, -0.7)}),
        ("rewards used", {"reward_difference": 0.04}),
        ("groups", {"group_rows": ("a", "b", "a", "b")}),
        ("agreement", {"gap": 0.2, "floor": 0.01}),
        ("ratio", {"ratio_difference": 0.2, "same": 0.08}),
        ("gradient", {"grad_norm": float("nan")}),
        ("update", {"unmoved": ("head",)}),
    ],
)
def test_a_broken_step_is_a_finding(check, changed):
    judged = judge(make_real(make_step(1), make_step(2, **changed)))
    assert [row.check for row in judged.findings] == [check]


@pytest.mark.parametrize(("check", "changed"), [("agreement", {"gap": 0.02, "floor": 0.01}), ("ratio", {"same": 0.08})])
def test_sixteen_bits_round(check, changed):
    rounded = {"ratio_difference": 0.01} | changed
    found = judge(make_real(make_step(1, **{"same": 0.08, **rounded}), make_step(2)))
    assert found.findings == ()
