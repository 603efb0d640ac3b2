"""The largest set of upgrades that makes nothing worse, against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.trials.search import LargestSet, NextSet, State, next_growth

GOOD, BAD, UNKNOWN = State.GOOD, State.BAD, State.UNKNOWN


def closed(units, needs):
    return frozenset(units).union(*(needs.get(unit, frozenset()) for unit in units))


def closed_sets(order, needs):
    subsets = (frozenset(some) for size in range(len(order) + 1) for some in itertools.combinations(order, size))
    return [one for one in subsets if closed(one, needs) == one]


def grow(order, needs, truth):
    """Search where ``truth`` says what a set is: what was found, and the sets tried with their states."""
    states = {frozenset(): GOOD}
    while isinstance(step := next_growth(order, needs, states), NextSet):
        assert step.subset not in states, "tried twice"
        assert closed(step.subset, needs) == step.subset, "tried without what it needs"
        states[step.subset] = truth(step.subset)
        assert len(states) <= 2 ** len(order), "no end"
    return step, states


def check(found, states, order, needs, truth):
    """What is kept was seen to be good, and no unit that was left out can be added to it."""
    assert states[found.kept] is GOOD
    assert found.kept.isdisjoint(found.left_out)
    assert found.kept | found.left_out.keys() == set(order)
    for unit, because in found.left_out.items():
        if isinstance(because, str):
            assert because in needs[unit] & found.left_out.keys()
        else:
            assert because == found.kept | {unit}
            assert states[because] is not GOOD


def excluding(*bad):
    """A world in which each of these sets of units makes something worse."""
    return lambda subset: BAD if any(one <= subset for one in map(frozenset, bad)) else GOOD


@st.composite
def worlds(draw, most=6):
    count = draw(st.integers(1, most))
    order = tuple("abcdefgh"[:count])
    needs: dict[str, frozenset[str]] = {}
    for index, unit in enumerate(order):
        direct = draw(st.sets(st.sampled_from(order[:index]), max_size=2)) if index else set()
        needs[unit] = closed(direct, needs)
    return order, needs


@settings(EXAMPLES, max_examples=300)
@given(worlds(), st.data())
def test_kept_set_is_good_and_cannot_grow(world, data):
    order, needs = world
    states = {one: data.draw(st.sampled_from(State)) for one in closed_sets(order, needs)}
    found, seen = grow(order, needs, states.__getitem__)
    check(found, seen, order, needs, states.__getitem__)


@settings(EXAMPLES, max_examples=300)
@given(worlds(), st.data())
def test_keeps_the_largest_set_if_culprits_fail_alone(world, data):
    order, needs = world
    culprits = data.draw(st.sets(st.sampled_from(order)))
    unknown = data.draw(st.sets(st.sampled_from(order)))

    def truth(subset):
        return BAD if subset & culprits else UNKNOWN if subset & unknown else GOOD

    found, _ = grow(order, needs, truth)
    largest = max((one for one in closed_sets(order, needs) if truth(one) is GOOD), key=len)
    assert found.kept == largest


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 16, 31, 33, 100])
def test_one_culprit_costs_twice_the_logarithm_at_most(count):
    order = tuple(f"u{number:03}" for number in range(count))
    for culprit in order:
        for needs in ({}, {unit: frozenset({culprit}) for unit in order[order.index(culprit) + 1 :][:3]}):
            found, states = grow(order, needs, excluding({culprit}))
            assert found.left_out.keys() == {culprit, *needs}
            assert len(states) <= 2 * math.ceil(math.log2(count)) + 2


def test_keeps_all_after_one_trial_if_all_are_good():
    found, states = grow("abc", {}, excluding())
    assert found == LargestSet(frozenset("abc"), {})
    assert len(states) == 2


def test_keeps_the_first_of_two_that_only_fail_together():
    found, _ = grow("abcd", {}, excluding("bd"))
    assert found.kept == frozenset("abc")
    assert found.left_out == {"d": frozenset("abcd")}


def test_keeps_an_upgrade_together_with_its_cure():
    def truth(subset):
        return BAD if "d" in subset or ("a" in subset and "c" not in subset) else GOOD

    found, _ = grow("abcd", {}, truth)
    assert found.kept == frozenset("abc")


def test_leaves_out_an_upgrade_that_could_not_be_tried():
    found, _ = grow("abc", {}, lambda subset: UNKNOWN if "b" in subset else GOOD)
    assert found.left_out == {"b": frozenset("abc")}


def test_leaves_out_upgrades_that_need_a_left_out_one():
    found, _ = grow("abcd", {"c": frozenset("b"), "d": frozenset("bc")}, excluding("b"))
    assert found.left_out == {"b": frozenset("ab"), "c": "b", "d": found.left_out["d"]}
    assert found.left_out["d"] in "bc"


def test_rejects_an_unproven_start():
    for states in ({}, {frozenset(): BAD}):
        with pytest.raises(ValueError, match="without any of the units it must have been good"):
            next_growth("ab", {}, states)
