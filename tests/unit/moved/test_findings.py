import pytest

from pytest_rlregress.commands.moved.findings import (
    UNKNOWN,
    Finding,
    Kind,
    Snapshot,
    find_moved,
    find_refused,
    is_given,
    show,
)


def moved(*values, given=()):
    return [*find_moved([Snapshot(f"1.{at}", one) for at, one in enumerate(values)], "verl", given)]


def test_names_the_release_of_a_move():
    (found,) = moved({"a": 1}, {"a": 1}, {"a": 2}, {"a": 2})
    assert (found.change, found.before, found.after, found.release) == ("moved", 1, 2, "1.2")


def test_tells_the_way_of_a_default_that_moved_twice():
    (found,) = moved({"a": 1}, {"a": 2}, {"a": 3})
    assert (found.release, found.why) == ("1.2", "1 → 2 (1.1) → 3 (1.2)")


def test_moved_and_back_does_not_concern_the_run():
    (found,) = moved({"a": "nll"}, {"a": "chunked"}, {"a": "nll"})
    assert (found.change, found.concerns, found.why) == ("back", False, "nll → chunked (1.1) → nll (1.2)")


@pytest.mark.parametrize(
    ("before", "after"), [({"a": 1}, {"a": 1}), ({"a": UNKNOWN}, {"a": 1}), ({"a": 1}, {}), ({"a": "x"}, {"a": ["x"]})]
)
def test_what_did_not_move_or_is_not_known_is_no_move(before, after):
    assert moved(before, after) == []


def test_what_the_run_sets_is_not_reported():
    assert moved({"a.b": 1}, {"a.b": 2}, given=["a"]) == []
    assert is_given("a.b", ["a.b.c"])
    assert not is_given("a.bc", ["a.b"])


def test_names_the_release_that_refuses_a_key():
    snapshots = [Snapshot("1.0", {}), Snapshot("1.1", {}, {"a": ""}), Snapshot("1.2", {}, {"a": "", "b": "why"})]
    gone, refused = find_refused(snapshots, "verl", {"a": "a=1"})
    assert (gone.change, gone.release, gone.place) == ("gone", "1.1", "a=1")
    assert (refused.change, refused.release, refused.why) == ("refused", "1.2", "why")


def test_says_that_both_ends_refuse_a_key():
    snapshots = [Snapshot("1.0", {}, {"a": ""}), Snapshot("1.1", {}, {"a": ""})]
    (found,) = find_refused(snapshots, "verl", {})
    assert (found.release, found.why) == ("", "1.0 refuses it too")


@pytest.mark.parametrize(("value", "text"), [(None, "null"), (True, "true"), ("", "''"), ([1, 2], "[1, 2]")])
def test_shows_values_as_yaml(value, text):
    assert show(value) == text


def test_orders_kinds_as_the_answer_does():
    assert [one.name for one in Kind] == ["KEY", "DEFAULT", "NAME", "ENGINE", "METADATA"]
    assert Finding(Kind.KEY, "a", "gone").concerns
