"""Numbers of training steps against their trusted nights: made nights, and what a broken judge would say of them."""

from __future__ import annotations

import datetime
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlregress.failures.verdicts import NumberWord
from pytest_rlregress.records import corridors, night
from pytest_rlregress.records.changes import Kind
from pytest_rlregress.records.corridors import BASELINE, judge_numbers
from pytest_rlregress.records.history import History, Point, RecordedRun
from pytest_rlregress.records.record_types import InstalledStack, RecordedDevice, RecordedHardware, RunExtra
from pytest_rlregress.records.step_numbers import MeasuredStep
from pytest_rlregress.stack.locks import Lock

FIRST = datetime.date(2026, 3, 1)
TEST = "training/test_step.py::test_step"
HEALTHY = {
    "loss": -0.1,
    "reward": 0.5,
    "grad_norm": 1.06,
    "agreement": 1e-3,
    "kl": 1e-4,
    "step_seconds": 0.5,
    "tokens_per_second": 1200.0,
    "peak_memory_bytes": 1.7e9,
}
NAMES = list(HEALTHY)


def make_run(day, numbers, device="GPU", packages="vllm==0.31.0", attempt=0, length=6, broken=()):
    """A run of a night; numbers None: the step was not measured."""
    start = datetime.datetime.combine(FIRST, datetime.time(2 + attempt), datetime.UTC) + datetime.timedelta(days=day)
    steps = []
    if numbers is not None:
        steps = [MeasuredStep(TEST, "trl-step", "colocate", length, numbers, frozenset(broken))]
    extra = RunExtra(1, InstalledStack([]), hardware=RecordedHardware("h100", devices=[RecordedDevice(device)]))
    lock = Lock({packages.partition("=")[0]: packages})
    return RecordedRun(f"{day}.{attempt}", Path(f"{day}.json"), start.timestamp(), 1, extra, lock, steps)


def make_history(runs, words=None, trust=None):
    words = words or {}
    points = [Point(run, words.get(run.id, "passed")) for run in runs if words.get(run.id) != "-"]
    return History(tuple(runs), (), {"h100": {TEST: points}}, trust or {})


def judge_each(runs, words=None, trust=None):
    """The words of each number, by name."""
    found = make_history(runs, words, trust)
    judged = judge_numbers(found.runs, found.timelines["h100"], found.trust)
    return {name: [point.word for point in points] for (_, name), points in judged.items()}


def judge_series(values, name="agreement", trust=None):
    """The words of one number with a value for each night; None: it is missing."""
    runs = [make_run(day, {} if value is None else {name: value}) for day, value in enumerate(values)]
    return judge_each(runs, trust=trust)[name]


def judge_last(runs, words=None, trust=None):
    """The platform in the last night, and its changes of numbers that are told."""
    [platform] = night.judge_night(make_history(runs, words, trust)).platforms
    return platform, [change for change in platform.numbers if change.kind is not Kind.STEADY]


def draw_healthy(drawn, scale=1.0):
    """One night's numbers as a card in bfloat16 gives them, or with ``scale`` times the noise."""
    spreads = {"loss": 0.02, "reward": 0.06, "grad_norm": 0.1, "agreement": 0.07, "kl": 0.1}
    spreads |= {"step_seconds": 0.2, "tokens_per_second": 0.2, "peak_memory_bytes": 0.02}
    added = {"loss", "reward"}
    noise = {name: drawn.gauss(0, spreads[name] * scale) for name in NAMES}
    return {
        name: value + noise[name] if name in added else value * math.exp(noise[name]) for name, value in HEALTHY.items()
    }


# -- healthy nights ----------------------------------------------------------------------------------------------------


def test_thirty_clean_nights_say_nothing():
    drawn = random.Random(0)
    runs = [make_run(day, draw_healthy(drawn)) for day in range(30)]
    for last in range(2, 31):
        platform, told = judge_last(runs[:last])
        assert not told
        assert platform.word == "good"
        assert (platform.baseline is None) == (last > BASELINE)
    assert set(judge_each(runs)) == set(NAMES)


@pytest.mark.parametrize(("scale", "most"), [(0, 0), (1, 0), (2, 0.0005), (4, 0.002)])
def test_healthy_noise_is_rarely_outside_and_never_twice(scale, most):
    """Of 60 nights with all numbers, on quiet machines and noisy ones; a confirmed jump closes the gate."""
    outside = judged = confirmed = 0
    for seed in range(12):
        drawn = random.Random(f"{seed} {scale}")
        words = judge_each([make_run(day, draw_healthy(drawn, scale)) for day in range(60)])
        for some in words.values():
            bad = [word == NumberWord.OUTSIDE for word in some[BASELINE:]]
            outside += sum(bad)
            judged += len(bad)
            confirmed += sum(one and other for one, other in pairwise(bad))
    assert judged == 12 * len(NAMES) * 50
    assert confirmed == 0
    assert outside <= most * judged


def test_first_nights_only_watch():
    runs = [make_run(day, {**HEALTHY, "agreement": 10.0**-day}) for day in range(BASELINE)]
    platform, told = judge_last(runs)
    assert not told
    assert (platform.baseline.numbers, platform.baseline.night) == (len(NAMES), BASELINE)
    assert judge_last([*runs, make_run(BASELINE, HEALTHY)])[0].baseline is None


def test_two_runs_of_a_night_are_one_night_of_the_baseline():
    runs = [make_run(day, HEALTHY, attempt=attempt) for day in range(BASELINE // 2) for attempt in (0, 1)]
    assert judge_last(runs)[0].baseline.night == BASELINE // 2
    assert judge_each([*runs, make_run(9, {**HEALTHY, "kl": 9.0})])["kl"][-1] == NumberWord.WATCHED


def test_of_two_tests_of_a_step_the_first_is_judged():
    runs = [make_run(day, HEALTHY) for day in range(2)]
    other = replace(runs[0].steps[0], test="training/test_other.py::test_other")
    runs = [replace(run, steps=[*run.steps, other]) for run in runs]
    found = make_history(runs)
    results = {**found.timelines["h100"], other.test: found.timelines["h100"][TEST]}
    assert {test for test, _ in judge_numbers(runs, results, {})} == {TEST}


def test_the_corridor_follows_the_last_thirty_nights():
    values = [1e-3 * factor for factor, nights in ((1, 200), (1.3, 31), (1.69, 5)) for _ in range(nights)]
    assert set(judge_series(values)[BASELINE:]) == {NumberWord.INSIDE}
    assert judge_series([*values[:205], 1.69e-3])[-1] == NumberWord.OUTSIDE


# -- jumps -------------------------------------------------------------------------------------------------------------

# as (number, value): to each side, an improvement being mostly a broken metric
JUMPS = [
    ("agreement", 0.094),
    ("agreement", 0.0),
    ("agreement", -1e-3),
    ("agreement", 5e-4),
    ("kl", 0.0),
    ("grad_norm", 12.0),
    ("grad_norm", 0.0),
    ("loss", 0.3),
    ("loss", -0.5),
    ("reward", 1.0),
    ("reward", 0.0),
    ("step_seconds", 5.0),
    ("step_seconds", 0.01),
    ("tokens_per_second", 9.0),
    ("peak_memory_bytes", 9e9),
    ("peak_memory_bytes", 0.9e9),
]


@pytest.mark.parametrize(("name", "value"), JUMPS)
def test_a_jump_to_either_side_is_outside(name, value):
    words = judge_series([HEALTHY[name]] * 12 + [value, HEALTHY[name]], name)
    assert words[BASELINE:] == [NumberWord.INSIDE] * 2 + [NumberWord.OUTSIDE, NumberWord.INSIDE]


def test_a_jump_is_told_with_its_corridor_its_night_and_the_upgrade_before():
    runs = [make_run(day, HEALTHY) for day in range(12)]
    jumped = {**HEALTHY, "agreement": 0.094}
    runs += [make_run(12, jumped, packages="vllm==0.32.0", attempt=attempt) for attempt in (0, 1)]
    platform, [change] = judge_last(runs)
    assert (platform.word, change.kind, change.trips, change.test) == ("worse", Kind.REGRESSION, True, TEST)
    assert change.latest.note == "trl-step agreement is 0.094; 12 trusted nights allow 0.000667 to 0.0015"
    assert (change.before.run, change.since.run) == (runs[11], runs[12])
    found = night.judge_night(make_history(runs))
    assert (found.colour, found.headline) == ("red", "1 regression on h100 since 2026-03-13.")


def test_an_upgrade_does_not_begin_a_new_reference():
    runs = [make_run(day, HEALTHY) for day in range(12)]
    runs += [make_run(day, {**HEALTHY, "grad_norm": 9.0}, packages="torch==9.9") for day in range(12, 40)]
    assert set(judge_each(runs)["grad_norm"][12:]) == {NumberWord.OUTSIDE}
    [change] = judge_last(runs)[1]
    assert (change.before.run, change.nights, change.kind) == (runs[11], 28, Kind.REGRESSION)


def test_a_jump_alone_is_unconfirmed_and_one_that_a_rerun_denies_a_flake():
    runs = [make_run(day, HEALTHY) for day in range(12)]
    jumped = make_run(12, {**HEALTHY, "kl": 3.0})
    platform, [change] = judge_last([*runs, jumped])
    assert (change.kind, change.trips) == (Kind.UNCONFIRMED, False)
    assert (
        "1 number worse in one run (unconfirmed)" in night.judge_night(make_history([*runs, jumped])).headline.lower()
    )
    _, [change] = judge_last([*runs, jumped, make_run(12, HEALTHY, attempt=1)])
    assert change.kind is Kind.FLAKE
    _, [change] = judge_last([*runs, jumped, make_run(13, HEALTHY)])
    assert change.kind is Kind.REPAIRED
    assert platform.baseline is None


@pytest.mark.parametrize("rate", [1.01, 0.99])
@pytest.mark.parametrize("name", ["agreement", "kl", "peak_memory_bytes", "step_seconds", "grad_norm"])
def test_a_slow_drift_comes_to_the_limit(name, rate):
    values = [HEALTHY[name] * rate**day for day in range(200)]
    words = judge_series(values, name)
    first = words.index(NumberWord.OUTSIDE)
    assert set(words[first:]) == {NumberWord.OUTSIDE}
    least = corridors._WIDTHS[name].least
    assert least < max(values[first] / values[0], values[0] / values[first]) < 1.2 * least**1.5


def test_a_drift_is_told_as_one():
    values = [1e-3 * 1.01**day for day in range(90)]
    runs = [make_run(day, {"agreement": value}) for day, value in enumerate(values)]
    [change] = judge_last(runs)[1]
    assert change.kind is Kind.REGRESSION
    assert change.latest.note.startswith("trl-step agreement drifted to 0.00242; the first 10 trusted nights allow ")


# -- missing -----------------------------------------------------------------------------------------------------------


def test_a_number_that_is_not_finite_is_missing():
    runs = [make_run(day, HEALTHY) for day in range(12)]
    _, [change] = judge_last([*runs, make_run(12, HEALTHY, broken=["loss"])])
    assert (change.kind, change.now.word) == (Kind.UNCONFIRMED, "missing")
    assert change.latest.note == "trl-step loss is missing or not finite; 12 trusted nights allow -0.2 to 0"


def test_a_number_that_is_gone_is_missing():
    less = {name: value for name, value in HEALTHY.items() if name != "agreement"}
    runs = [make_run(day, HEALTHY if day < 12 else less) for day in range(14)]
    _, [change] = judge_last(runs)
    assert (change.kind, change.now.word, change.number.name) == (Kind.REGRESSION, "missing", "trl-step agreement")


def test_a_good_test_that_measured_nothing_lacks_all_numbers():
    runs = [make_run(day, HEALTHY if day < 12 else None) for day in range(13)]
    assert {change.now.word for change in judge_last(runs)[1]} == {"missing"}
    assert len(judge_last(runs)[1]) == len(NAMES)


@pytest.mark.parametrize("word", ["regressed", "unavailable", "expected", "-"])
def test_what_a_test_lacks_that_is_not_good_is_not_missing(word):
    runs = [make_run(day, HEALTHY if day < 12 else None) for day in range(13)]
    assert judge_last(runs, {"12.0": word})[1] == []


def test_a_number_that_never_was_is_not_missing():
    runs = [make_run(day, HEALTHY, broken=["kl"]) for day in range(13)]
    assert "kl" not in judge_each(runs)


# -- trust -------------------------------------------------------------------------------------------------------------


def test_a_test_that_is_not_good_is_no_reference():
    runs = [make_run(day, {"kl": 5.0 if day < 8 else 1e-3}) for day in range(30)]
    words = judge_each(runs, {f"{day}.0": "failed" for day in range(8)})["kl"]
    assert words[:18] == [NumberWord.WATCHED] * 18
    assert set(words[18:]) == {NumberWord.INSIDE}


def test_a_night_that_jumped_is_not_trusted():
    for jumped in (0.1, 1.7e-3):  # the second is within what a drift may come to
        values = [1e-3] * 12 + [jumped] * 60
        assert set(judge_series(values)[12:]) == {NumberWord.OUTSIDE}


def test_an_untrusted_night_is_no_reference_and_is_judged():
    noisy = [1e-3, 8e-3] * 6
    assert judge_series([*noisy, 5e-3])[-1] == NumberWord.INSIDE
    untrusted = {f"{day}.0": False for day in range(1, 12, 2)}
    calm = [*noisy, *[1e-3] * 4, 5e-3]
    assert judge_series(calm, trust=untrusted)[-1] == NumberWord.OUTSIDE
    jumped = [1e-3] * 12 + [0.1, 0.1]
    assert judge_series(jumped, trust={"12.0": False})[-2:] == [NumberWord.OUTSIDE] * 2


def test_a_jump_that_is_trusted_begins_a_new_reference():
    values = [1e-3] * 12 + [0.1] * 15 + [1e-3]
    words = judge_series(values, trust={"12.0": True})
    assert words[12:22] == [NumberWord.ACCEPTED] + [NumberWord.WATCHED] * 9
    assert words[22:] == [NumberWord.INSIDE] * 5 + [NumberWord.OUTSIDE]
    assert judge_series([1e-3] * 14, trust={"12.0": True})[-1] == NumberWord.INSIDE


def test_a_number_that_is_gone_for_good_can_be_trusted_away():
    runs = [make_run(day, {"kl": 1e-3} if day < 12 else {}) for day in range(15)]
    assert judge_each(runs, trust={"12.0": True})["kl"][12:] == [NumberWord.ACCEPTED]


# -- what may be compared ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"device": "another GPU"}, {"length": 40}])
def test_other_hardware_or_another_length_has_a_reference_of_its_own(other):
    runs = [make_run(day, HEALTHY) for day in range(12)]
    runs += [make_run(12, {**HEALTHY, "step_seconds": 50.0}, **other)]
    platform, told = judge_last(runs)
    assert (told, platform.baseline.night) == ([], 1)


@given(st.lists(st.floats(-1e9, 1e9), min_size=BASELINE, max_size=BASELINE), st.sampled_from(NAMES), st.randoms())
def test_the_order_of_the_first_nights_does_not_matter(values, name, drawn):
    shuffled = values.copy()
    drawn.shuffle(shuffled)
    assert make_reference(values, name).judge(1.0) == make_reference(shuffled, name).judge(1.0)


@given(
    st.lists(st.floats(1, 1e9), min_size=BASELINE, max_size=60),
    st.sampled_from(NAMES),
    st.floats(1, 1e12),
)
def test_what_is_between_the_ends_is_inside(values, name, value):
    """Also where values drift: only what is inside is trusted, so that the corridor never closes."""
    reference = make_reference(values[:BASELINE], name)
    for later in values[BASELINE:]:
        if reference.judge(later).word is NumberWord.INSIDE:
            reference.trust(FIRST, later)
    found = reference.judge(value)
    assert found.low <= found.high
    if found.low * 1.001 + 1e-6 < value < found.high * 0.999 - 1e-6:
        assert found.word is NumberWord.INSIDE
    if not found.low * 0.999 - 1e-6 <= value <= found.high * 1.001 + 1e-6:
        assert found.word is NumberWord.OUTSIDE
    assert reference.judge(math.inf).word is NumberWord.OUTSIDE


def make_reference(values, name):
    reference = corridors.Reference(corridors._WIDTHS[name])
    for day, value in enumerate(values):
        reference.trust(FIRST + datetime.timedelta(days=day), value)
    return reference
