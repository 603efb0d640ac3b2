"""The search, against brute force: unknowns anywhere, and broken searches that these properties must catch."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.trials import search
from pytest_rlregress.trials.search import MinimalSet, NextSet, NotMonotone, State, Window

GOOD, BAD, UNKNOWN = State.GOOD, State.BAD, State.UNKNOWN
WORD = {".": None, "G": GOOD, "B": BAD, "?": UNKNOWN}


def states_of(text):
    return [WORD[letter] for letter in text]


# --- The first bad of a row of candidates.


def probes(first_bad, truth):
    """Search a row whose states are these: the indices tried, and the window."""
    states = [truth[0], *[None] * (len(truth) - 2), truth[-1]]
    tried = []
    while isinstance(step := first_bad(states), int):
        assert states[step] is None, "tried twice"
        states[step] = truth[step]
        tried.append(step)
    return tried, step


def row(count, boundary, unknown):
    return [UNKNOWN if index in unknown else GOOD if index < boundary else BAD for index in range(count)]


def finds_the_tightest_window(first_bad, *truths):
    for truth in truths:
        _, window = probes(first_bad, truth)
        bad = truth.index(BAD)
        assert window == Window(max(index for index in range(bad) if truth[index] is GOOD), bad)


def rows_with_unknowns_anywhere(most):
    for count in range(2, most + 1):
        for placed in itertools.product((False, True), repeat=count - 2):
            unknown = {index for index, is_unknown in enumerate(placed, 1) if is_unknown}
            for boundary in range(1, count):
                yield row(count, boundary, unknown)


def halves(first_bad):
    for count in [*range(2, 65), 100, 257]:
        for boundary in range(1, count):
            tried, _ = probes(first_bad, row(count, boundary, ()))
            assert len(tried) + 2 <= math.ceil(math.log2(count)) + 2


def escapes_clusters(first_bad):
    """Unknowns round the middle: first what is outside, in logarithmically many, then they, if it is among them."""
    for count in (16, 33, 100, 256):
        for width in {1, 2, count // 10, count // 4, count // 2} - {0}:
            start = (count - width) // 2
            cluster = range(start, start + width)
            few = 2 * math.ceil(math.log2(count))
            for boundary in {1, start // 2, start - 1, start, start + width // 2, start + width, start + width + 1}:
                tried, window = probes(first_bad, row(count, boundary, cluster))
                if window == Window(start - 1, start + width):
                    assert set(tried[few:]) <= set(cluster)
                    assert len(tried) <= few + width
                else:
                    assert len(tried) <= few


def test_the_window_is_the_tightest_for_every_boundary_and_every_placement_of_unknowns():
    finds_the_tightest_window(search.next_candidate, *rows_with_unknowns_anywhere(12))


@settings(EXAMPLES, max_examples=300)
@given(st.lists(st.booleans(), min_size=10, max_size=100), st.integers(0, 100))
def test_the_window_is_the_tightest_in_long_rows(placed, boundary):
    unknown = {index for index, is_unknown in enumerate(placed, 1) if is_unknown}
    count = len(placed) + 2
    finds_the_tightest_window(search.next_candidate, row(count, 1 + boundary % (count - 1), unknown))


def test_halves_the_window_if_no_state_is_unknown():
    halves(search.next_candidate)


def test_search_escapes_clusters_of_unknowns():
    escapes_clusters(search.next_candidate)


def treating_unknown_as(state):
    return lambda states: search.next_candidate([state if one is UNKNOWN else one for one in states])


def off_by_one(states):
    good, bad = search.find_window(states)
    return Window(good, bad) if bad - good == 2 else search.next_candidate(states)


def giving_up_between_unknowns(states):
    step = search.next_candidate(states)
    good, bad = search.find_window(states)
    if isinstance(step, int) and states[step - 1] is states[step + 1] is UNKNOWN:
        return Window(good, bad)
    return step


def one_after_the_other(states):
    return states.index(None) if None in states else search.next_candidate(states)


def trying_unknowns_again(states):
    return search.next_candidate([None if one is UNKNOWN else one for one in states])


def the_longest_run_wherever_it_is(states):
    good, bad = search.find_window(states)
    runs = search._find_untried(states, good, bad)
    return max(runs, key=len)[len(max(runs, key=len)) // 2] if runs else Window(good, bad)


@pytest.mark.parametrize(
    "broken",
    [
        treating_unknown_as(BAD),
        treating_unknown_as(GOOD),
        off_by_one,
        giving_up_between_unknowns,
        trying_unknowns_again,
    ],
)
def test_a_search_with_a_wrong_window_is_caught(broken):
    with pytest.raises((AssertionError, NotMonotone)):
        finds_the_tightest_window(broken, *rows_with_unknowns_anywhere(9))


def test_a_slow_search_is_caught():
    finds_the_tightest_window(one_after_the_other, *rows_with_unknowns_anywhere(6))
    with pytest.raises(AssertionError):
        halves(one_after_the_other)


def test_a_search_that_gets_lost_in_a_cluster_is_caught():
    finds_the_tightest_window(the_longest_run_wherever_it_is, *rows_with_unknowns_anywhere(6))
    halves(the_longest_run_wherever_it_is)
    with pytest.raises(AssertionError):
        escapes_clusters(the_longest_run_wherever_it_is)


@pytest.mark.parametrize(
    ("known", "step"),
    [
        ("GB", Window(0, 1)),
        ("G.B", 1),
        ("G?B", Window(0, 2)),
        ("G.......B", 4),
        ("G...?...B", 2),
        ("G?..?...B", 6),
        ("G?..?..?B", 2),
        ("..G.B..B"[2:], 1),
        ("G..GB..B", Window(3, 4)),
    ],
)
def test_chooses_the_next_candidate(known, step):
    assert search.next_candidate(states_of(known)) == step


def test_a_good_one_after_a_bad_one_is_named():
    with pytest.raises(NotMonotone, match="candidate 4 is good although candidate 2 before it is bad") as caught:
        search.next_candidate(states_of("G.B.G.B"))
    assert (caught.value.good, caught.value.bad) == (4, 2)


@pytest.mark.parametrize("ends", ["", "G", "B", ".B", "G.", "BG", "BB", "GG", "?B"])
def test_rejects_unproven_ends(ends):
    with pytest.raises(ValueError, match="the first candidate must have been good and the last one bad"):
        search.next_candidate(states_of(ends))


# --- The culprits among units that changed at once.


@dataclass(frozen=True)
class World:
    """Units, what they need, and what every closed set of them is to the test, as far as it can be known."""

    order: tuple[str, ...]
    needs: dict[str, frozenset[str]]
    states: dict[frozenset[str], State]
    monotone: bool = True

    def closed(self, units):
        return frozenset(units).union(*(self.needs[unit] for unit in units))

    def tops(self, units):
        """Those that no other one of them needs: what can be dropped alone."""
        return [unit for unit in units if not any(unit in self.needs[other] for other in units)]


def closed_sets(order, needs):
    subsets = (frozenset(some) for size in range(len(order) + 1) for some in itertools.combinations(order, size))
    return [subset for subset in subsets if all(needs[unit] <= subset for unit in subset)]


@st.composite
def worlds(draw, monotone=True):
    order = tuple("abcdef"[: draw(st.integers(1, 6))])
    needs = {}
    for index, unit in enumerate(order):
        direct = draw(st.frozensets(st.sampled_from(order[:index]), max_size=2)) if index else frozenset()
        needs[unit] = direct.union(*(needs[other] for other in direct))
    failing = draw(st.lists(st.frozensets(st.sampled_from(order), min_size=1, max_size=3), min_size=1, max_size=3))
    often, pick = draw(st.sampled_from([0, 0.1, 0.3, 0.6, 1])), random.Random(draw(st.integers(0, 1000)))
    full, states = frozenset(order), {}
    for subset in closed_sets(order, needs):
        fails = any(some <= subset for some in failing) if monotone else pick.random() < 0.5
        states[subset] = UNKNOWN if pick.random() < often else BAD if fails else GOOD
    return World(order, needs, {**states, frozenset(): GOOD, full: BAD}, monotone)


def trials(culprits, world):
    """What is found, and what was tried on the way."""
    known = {frozenset(): GOOD, frozenset(world.order): BAD}
    while isinstance(step := culprits(world.order, world.needs, known), NextSet):
        assert step.subset in world.states, "not closed under needs"
        assert step.subset not in known, "tried twice"
        known[step.subset] = world.states[step.subset]
    return step, known


def finds_the_culprits(culprits, world):
    found, known = trials(culprits, world)
    units = frozenset().union(*found.culprits)
    bad = world.closed(units)
    assert known.get(bad) is BAD, "a guess"
    assert sum(map(len, found.culprits)) == len(units)
    assert not any(known.get(bad - {unit}) is BAD for unit in world.tops(bad)), "one could be dropped"
    for culprit in found.culprits:
        if len(culprit) > 1:
            told_apart = [known.get(bad - {unit}) for unit in world.tops(bad) if unit in culprit]
            assert set(told_apart) == {UNKNOWN}, "told apart, but not told"
        if found.proven and world.monotone:
            assert any(known[less] is GOOD and bad - culprit <= less for less in known), "proven by what?"
    if found.proven:
        assert all(known.get(bad - {unit}) is GOOD for (unit,) in (one for one in found.culprits if len(one) == 1))
    if UNKNOWN not in known.values():
        assert found.proven
    if found.proven and world.monotone and all(len(culprit) == 1 for culprit in found.culprits):
        smaller = [subset for subset in world.states if subset < bad]
        assert BAD not in map(world.states.get, smaller), "not the smallest"


def finds_them_in_any(culprits, monotone=True):
    @settings(EXAMPLES, max_examples=200)
    @given(worlds(monotone))
    def found(world):
        finds_the_culprits(culprits, world)

    found()


def test_finds_the_same_culprits_as_brute_force():
    finds_them_in_any(search.next_set)


def test_answer_was_seen_bad_even_if_upgrades_cure_each_other():
    finds_them_in_any(search.next_set, monotone=False)


def test_finds_culprits_among_three_units_for_every_placement_of_unknowns():
    needs = dict.fromkeys("abc", frozenset())
    subsets = closed_sets("abc", needs)
    inner = subsets[1:-1]
    for fails in itertools.product((False, True), repeat=len(inner)):
        bad = {subset for subset, fail in zip(inner, fails, strict=True) if fail}
        if any(subset <= more and more not in bad for subset in bad for more in inner):
            continue  # not monotone
        for placed in itertools.product((False, True), repeat=len(inner)):
            states = {subset: BAD if subset in bad else GOOD for subset in inner}
            states |= {subset: UNKNOWN for subset, is_unknown in zip(inner, placed, strict=True) if is_unknown}
            finds_the_culprits(
                search.next_set, World(tuple("abc"), needs, {**states, subsets[0]: GOOD, subsets[-1]: BAD})
            )


def unknown_as(state):
    return lambda order, needs, known: search.next_set(
        order, needs, {subset: state if one is UNKNOWN else one for subset, one in known.items()}
    )


def not_verified(order, needs, known):
    prefixes = [frozenset(order[:count]) for count in range(len(order) + 1)]
    step = search.next_candidate([known.get(prefix) for prefix in prefixes])
    if isinstance(step, int):
        return NextSet(prefixes[step])
    return MinimalSet((frozenset(order[step.last_good : step.first_bad]),), proven=True)


def not_minimal(order, needs, known):
    step = search._narrow(order, needs, known)
    return step if isinstance(step, NextSet) else MinimalSet(tuple(frozenset({unit}) for unit in step), proven=True)


def without_needs(order, needs, known):
    return search.next_set(order, {}, known)


def always_proven(order, needs, known):
    step = search.next_set(order, needs, known)
    return MinimalSet(step.culprits, proven=True) if isinstance(step, MinimalSet) else step


@pytest.mark.parametrize(
    "broken", [unknown_as(BAD), unknown_as(GOOD), not_verified, not_minimal, without_needs, always_proven]
)
def test_broken_searches_for_culprits_are_caught(broken):
    with pytest.raises((AssertionError, NotMonotone)):
        finds_them_in_any(broken)


class Function(dict):
    """Every set's state, without listing them."""

    def __init__(self, state):
        self.state = state

    def __contains__(self, subset):
        return True

    def __missing__(self, subset):
        return self.state(subset)


def numbered(count, state, needs=()):
    order = tuple(f"{index:03}" for index in range(count))
    return World(order, {**dict.fromkeys(order, frozenset()), **dict(needs)}, Function(state))


def test_one_culprit_among_many_costs_twice_the_logarithm_at_most():
    pick = random.Random(0)
    for count in range(2, 301):
        index = pick.choice([0, pick.randrange(count), count - 1])
        culprit = f"{index:03}"
        needs = {culprit: frozenset(f"{other:03}" for other in range(index) if pick.random() < 0.1)}
        world = numbered(count, lambda subset, culprit=culprit: BAD if culprit in subset else GOOD, needs)
        found, known = trials(search.next_set, world)
        assert found == MinimalSet((frozenset({culprit}),), proven=True)
        assert len(known) <= 2 * math.ceil(math.log2(count)) + 2


def test_finds_upgrades_that_only_break_together():
    together = {"003", "041", "077"}
    found, known = trials(search.next_set, numbered(100, lambda subset: BAD if together <= subset else GOOD))
    assert found == MinimalSet(tuple(frozenset({unit}) for unit in sorted(together)), proven=True)
    assert len(known) <= 2 + 3 * (math.ceil(math.log2(100)) + 2)


def test_units_that_only_work_beside_each_other_do_not_hide_the_culprit():
    def state(subset):
        if ("010" in subset) != ("060" in subset):
            return UNKNOWN  # a need that no metadata says
        return BAD if "030" in subset else GOOD

    found, known = trials(search.next_set, numbered(100, state))
    assert found == MinimalSet((frozenset({"030"}),), proven=True)
    assert len(known) <= 6 * math.ceil(math.log2(100))


def test_inseparable_units_are_named_together():
    def state(subset):
        both = {"010", "060"} & subset
        return UNKNOWN if len(both) == 1 else BAD if both else GOOD

    found, _ = trials(search.next_set, numbered(100, state))
    assert found == MinimalSet((frozenset({"010", "060"}),), proven=True)


def test_names_a_dependency_that_cannot_be_tried_without_the_culprit():
    needs = {"a": frozenset(), "b": frozenset("a"), "c": frozenset()}
    states = {"": GOOD, "a": UNKNOWN, "c": GOOD, "ab": BAD, "ac": UNKNOWN, "abc": BAD}
    found, _ = trials(search.next_set, World(tuple("abc"), needs, {frozenset(k): v for k, v in states.items()}))
    assert found == MinimalSet((frozenset("ab"),), proven=True)


def test_a_companion_that_could_not_be_left_behind_is_not_proven():
    states = {"": GOOD, "a": UNKNOWN, "b": GOOD, "ab": BAD}
    needs = dict.fromkeys("ab", frozenset())
    found, _ = trials(search.next_set, World(tuple("ab"), needs, {frozenset(k): v for k, v in states.items()}))
    assert found == MinimalSet((frozenset("a"), frozenset("b")), proven=False)


@pytest.mark.parametrize(("none", "all_"), [(BAD, BAD), (GOOD, GOOD), (UNKNOWN, BAD), (GOOD, None)])
def test_rejects_unproven_locks(none, all_):
    with pytest.raises(ValueError, match="without any of the units it must have been good, and with all of them bad"):
        search.next_set("ab", {}, {frozenset(): none, frozenset("ab"): all_})
