"""The exit codes of sigfpe-embedding's children name the hypothesis that they support."""

from __future__ import annotations

import re
import signal

import pytest

from pytest_rlregress.scenarios.rollout.sigfpe_embedding.exit_codes import (
    find_contradictions,
    name_hypothesis,
    render_table,
)

DEAD = -signal.SIGFPE
LIVE = [0, 0, 0, 0, 0]
#: The acts in the order of the rows below.
ACTS = ("look-up, strided", "look-up, contiguous", "product", "both, strided", "both, contiguous")


def row(codes):
    return dict(zip(ACTS, codes, strict=True))


def contradictions(codes, control=DEAD, cured=False):
    return find_contradictions({"head-8": row(codes)}, control, cured=cured)


@pytest.mark.parametrize(
    ("codes", "hypothesis"),
    [
        (LIVE, "nothing died"),
        ([0, 0, DEAD, DEAD, DEAD], "H2, products"),
        ([DEAD, 0, 0, DEAD, 0], "H1, ids"),
        ([DEAD, DEAD, 0, DEAD, DEAD], "H1, ids"),
        ([0, 0, 0, DEAD, 0], "H1, ids"),
        ([0, 0, DEAD, DEAD, 0], "neither"),
        ([0, 0, DEAD, 0, 0], "neither"),
        ([DEAD, DEAD, DEAD, DEAD, DEAD], "neither"),
    ],
)
def test_names_the_hypothesis_that_exit_codes_support(codes, hypothesis):
    assert name_hypothesis(row(codes)) == hypothesis
    assert (contradictions(codes) == []) == (hypothesis in ("nothing died", "H2, products"))


@pytest.mark.parametrize("control", [0, 1, -signal.SIGSEGV])
@pytest.mark.parametrize("codes", [LIVE, [0, 0, DEAD, DEAD, DEAD]])
def test_says_nothing_without_a_control_that_died(codes, control):
    [sentence] = contradictions(codes, control)
    assert "the other exit codes say nothing" in sentence


@pytest.mark.parametrize("code", [1, -signal.SIGSEGV, -signal.SIGKILL])
def test_names_an_act_that_ended_otherwise(code):
    [sentence] = contradictions([0, 0, code, 0, 0])
    assert sentence == f"head-8: ended with neither 0 nor SIGFPE: {{'product': {code}}}"


def test_names_the_acts_that_ids_decide():
    assert contradictions([DEAD, 0, 0, DEAD, 0]) == [
        "head-8: a look-up alone died: look-up, strided",
        "head-8: ids decide: both, strided did not end as the product alone",
    ]


def test_a_cured_library_lets_no_product_die():
    dying = [0, 0, DEAD, DEAD, DEAD]
    assert contradictions(dying, cured=False) == []
    assert contradictions(dying, cured=True) == ["head-8: died with a cuBLAS that should be cured"]
    assert contradictions(LIVE, cured=True) == []


def test_renders_a_line_a_product():
    table = render_table({"head-1": row(LIVE), "head-8": row([0, 0, DEAD, DEAD, DEAD])}, DEAD)
    _, lives, dies, control = [re.split(r"\s{2,}", line) for line in table.splitlines()]
    assert lives == ["head-1", "0", "0", "0", "0", "0", "nothing died"]
    assert dies == ["head-8", "0", "0", "-8", "-8", "-8", "H2, products"]
    assert control == ["control, a division by zero: -8"]
