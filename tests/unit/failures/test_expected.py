"""Values that differ by hardware and stack: which one a table has for this run, and what is said where it has none."""

from __future__ import annotations

import re

import pytest
from cards import h200
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlregress.fixtures.expected_values import ExpectedKeyError, NoExpectedValue, choose_expected
from pytest_rlregress.stack import Stack

PROFILES = ("cpu", "h100", "h200", "h20")
STACK = Stack({"vllm": "0.31.0+cpu", "torch": "2.13.0", "trl": "1.16.0rc1"})


def chosen(*keys, profile="h100"):
    return choose_expected({key: number for number, key in enumerate(keys)}, profile, PROFILES, STACK)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["h100"], 0),
        (["cpu", "h100"], 1),
        ([("h100",)], 0),
        ([("h100", "vllm<0.31"), ("h100", "vllm>=0.31")], 1),
        ([("h100", "vllm>=0.31", "torch<2.13"), ("h100", "vllm>=0.31", "torch>=2.13")], 1),
        ([("h100", "vllm>=0.30,<0.32")], 0),
        ([("h100", "trl>=1.15")], 0),
        ([("h100", "verl>=0.9"), ("h100", "vllm>=0.31")], 1),
    ],
)
def test_chooses_the_value_whose_key_fits(keys, value):
    assert chosen(*keys) == value


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["cpu", "h200", "h20"], "no expected value for h100: add the key 'h100'; there is 'cpu', 'h200', 'h20'"),
        (
            [("h100", "vllm>=0.32"), "h200"],
            "no expected value for h100, vllm 0.31.0+cpu: add the key ('h100', 'vllm==0.31.0'); there is "
            "('h100', 'vllm>=0.32'), 'h200'",
        ),
        (
            [("h100", "verl>=0.9")],
            "no expected value for h100, verl (not installed): add the key 'h100'; there is ('h100', 'verl>=0.9')",
        ),
        (
            [("h200", "vllm>=0.31")],
            "no expected value for h100, vllm 0.31.0+cpu: add the key ('h100', 'vllm==0.31.0'); there is",
        ),
        ([], "no expected value for h100: add the key 'h100'"),
    ],
)
def test_error_says_which_key_to_add(keys, message):
    with pytest.raises(NoExpectedValue) as raised:
        chosen(*keys)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "keys",
    [
        ["h100", ("h100", "vllm>=0.31")],
        [("h100", "vllm>=0.31"), ("h100", "torch>=2.13")],
        ["h100", ("h100",)],
    ],
)
def test_rejects_two_keys_that_fit_and_names_both(keys):
    with pytest.raises(ExpectedKeyError) as raised:
        chosen(*keys)
    assert all(repr(key) in str(raised.value) for key in keys)


@pytest.mark.parametrize(
    "key",
    [
        "h1OO",
        ("vllm>=0.31", "h100"),
        ("h100", "h200"),
        ("h100", "vllm=0.31"),
        ("h100", "vllm>=0.31; python_version>'3'"),
        ("h100", "vlm>=0.31"),
        ("h100", 0.31),
        (),
        None,
    ],
)
@pytest.mark.parametrize("fitting", [[], ["cpu"]])
def test_rejects_a_malformed_key_on_any_hardware(key, fitting):
    with pytest.raises(ExpectedKeyError, match=rf"{re.escape(repr(key))} isn't a key: .* Profiles: cpu, .*: torch"):
        chosen(*fitting, key, profile="cpu")


CONDITIONS = st.tuples(
    st.sampled_from(["vllm", "torch", "verl"]), st.sampled_from([">=", "<", "==", "!="]), st.integers(29, 33)
)
KEYS = st.tuples(st.sampled_from(PROFILES), st.lists(CONDITIONS, max_size=2))


@given(st.lists(KEYS))
def test_chooses_only_the_key_of_this_hardware_and_stack(drawn):
    keys = {(profile, *(f"{name}{sign}0.{minor}" for name, sign, minor in more)): more for profile, more in drawn}
    fitting = [
        place
        for place, ((profile, *_), more) in enumerate(keys.items())
        if profile == "h100" and all(STACK.satisfies(name, f"{sign}0.{minor}") for name, sign, minor in more)
    ]
    if len(fitting) == 1:
        assert chosen(*keys) == fitting[0]
    else:
        with pytest.raises(ExpectedKeyError if fitting else NoExpectedValue):
            chosen(*keys)


# -- in a test of a user's -----------------------------------------------------------------------------------------

TESTS = """
    def test_there(expected):
        assert expected({"cpu": 1, "h200": 2}) == 2

    def test_none(expected):
        expected({("h100", "torch>=1"): 1})

    def test_two(expected):
        expected({"cpu": 1, ("cpu", "torch>=1"): 2, "h200": 3, ("h200",): 4})
"""


@pytest.mark.process
def test_fixture_chooses_the_value_in_a_test(run, cards):
    cards(h200())
    result = run({"test_it": TESTS}, "--hw=h200", "-rs", "test_it.py")
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*ExpectedKeyError: expected values: '*' and *both fit*"])
    assert "no expected value for h200, torch" in result.stdout.str()
    assert "add the key ('h200', 'torch==" in " ".join(result.stdout.str().split())
