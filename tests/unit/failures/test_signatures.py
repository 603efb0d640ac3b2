"""Examples of lines, and the shipped ones: each finds itself."""

from __future__ import annotations

import re

import pytest

from pytest_rlregress.failures.catalogue import SHIPPED, load
from pytest_rlregress.failures.signatures import Example, split_class

SHIPPED_SIGNATURES = [(failure.id, one) for failure in load([SHIPPED]).values() for one in failure.signatures]
EXAMPLES = [
    (name, example)
    for name, one in SHIPPED_SIGNATURES
    for example in filter(None, (one.message, one.log, *one.frames, *one.clues))
]
#: What a hole may be, where an example is its own test.
FILLED = {"": "a text", "name": "a-name", "number": "12", "quote": "'", "who": "", "start": "", "end": ""}


@pytest.mark.parametrize(
    ("example", "found", "others"),
    [
        ("KeyError: '{name}'", ["KeyError: 'a.b-c'"], ["KeyError: 'a b'", "KeyError: ''"]),
        ("{number} of {number} GiB", ["-1.5e-05 of 12,000.1 GiB"], ["x of y GiB"]),
        ("free {the|all} cards", ["please free all cards now", "free the\n  cards"], ["free cards"]),
        ("size {}({{x}})", ["size of it ({x})", "size ({x})"], ["size (x)"]),
        ("a.b [c]", ["a.b [c]"], ["axb [c]"]),
        ("{start}full{end}", ["full\n"], ["is full", "full of"]),
    ],
)
def test_example_matches_only_messages_of_its_shape(example, found, others):
    search = Example(example).search
    assert all(map(search, found))
    assert not any(map(search, others))


def test_custom_hole_matches_its_pattern():
    search = Example("size {large}", {"large": r"\d{4,}"}).search
    assert search("size 4096")
    assert not search("size 512")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("KeyError: 'x'", ("KeyError", "'x'")),
        ("torch.OutOfMemoryError: all", ("OutOfMemoryError", "all")),
        ("AssertionError", ("AssertionError", "")),
        ("Error: no disk", (None, "Error: no disk")),
        ("Unsloth: no", (None, "Unsloth: no")),
        ("std::OutOfRange: x", (None, "std::OutOfRange: x")),
    ],
)
def test_splits_the_class_from_the_message(text, parts):
    assert split_class(text) == parts


@pytest.mark.parametrize(
    ("example", "anchors"),
    [
        ("Key '{name}' is not present in the keys", {"' is not present in the keys"}),
        ("{free|get} it", {"free it", "get it"}),
        ("'{name}'", {"'"}),
        ("{name}", {""}),
    ],
)
def test_example_has_literal_anchors(example, anchors):
    assert Example(example).anchors == anchors


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=lambda one: one if isinstance(one, str) else "")
def test_a_shipped_example_finds_itself(name, example):
    del name
    if set(re.findall(r"\{(\w+)\}", example.text)) & example.where.keys():
        assert example.regex
        return

    def fill(hole):
        words = example._words(hole)
        return words[0] if words else FILLED[hole]

    assert example.search("".join(fill(part) if is_hole else part for is_hole, part in example._parts))


def test_regular_expressions_are_few():
    where = {
        (failure.id, hole)
        for failure in load([SHIPPED]).values()
        for one in failure.signatures
        for hole in (one.message.where if one.message else ())
    }
    assert len(where) <= 60
