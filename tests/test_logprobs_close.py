"""check_logprobs_close: rounding passes, and the message shows the first place where there is more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_rlregress.agreement.close import check_logprobs_close
from pytest_rlregress.fixtures.completions import Completion

ROUNDING = [1e-6, 2e-6, 0.0]  # so much that 8 times it, 1.6e-5, is allowed
TOP = [{7: -0.5, 8: -2.0}, {8: -1.0, 9: -1.00002}, {5: -0.25}]
ONE = Completion([1, 2], [7, 8, 5], [-0.5, -1.0, -0.25], "length", TOP, ROUNDING)


class Tokenizer:
    def decode(self, ids, skip_special_tokens=False):
        return "".join(f"<{token}>" for token in ids)


def other(**changes):
    return replace(ONE, rounding=None, get_tokenizer=Tokenizer, **changes)


def test_rounding_is_allowed():
    check_logprobs_close([ONE], [other(logprobs=[-0.500015, -0.99999, -0.25])])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"logprobs": [-0.5, -1.00002, -0.25]},
            r"prompt 1, token 1, 8 at -1.000000 of hf: vllm gave it -1.000020, 2e-05 nats apart .* up to 1.6e-05",
        ),
        ({"logprobs": [-0.5, float("nan"), -0.25]}, "vllm gave it nan"),
        (
            {"ids": [8, 8, 5], "logprobs": [-0.4, -1.0, -0.25], "top_logprobs": [{8: -0.4, 7: -0.6}, *TOP[1:]]},
            r"prompt 1, token 0: hf drew 7 at -0.500000 and gave vllm's token -2.000000; "
            r"vllm drew 8 '<8>' at -0.400000 and gave hf's token -0.600000: more than a tie, which 3.2e-05 nats",
        ),
        ({"ids": [6, 8, 5], "top_logprobs": [{6: -0.5}, *TOP[1:]]}, "gave vllm's token less than its 2 best"),
        ({"ids": [6, 8, 5], "top_logprobs": None}, "gave hf's token something unknown: without top_logprobs="),
        (
            {"ids": [7], "logprobs": [-0.5], "finish_reason": "stop"},
            r"vllm ended before it \(stop\), the other .* 8 at -1",
        ),
    ],
    ids=["apart", "nan", "another token", "not among the best", "nothing said", "ended"],
)
def test_first_place(changes, message):
    with pytest.raises(AssertionError, match=message):
        check_logprobs_close([ONE, ONE], [other(), other(**changes)])


@pytest.mark.parametrize("sides", [([], []), ([replace(ONE, ids=[], logprobs=[])], [other(ids=[], logprobs=[])])])
def test_nothing_to_compare_is_not_agreement(sides):
    with pytest.raises(ValueError, match="no completion of hf or vllm has a token"):
        check_logprobs_close(*sides, atol=1.0)


def test_a_tie_is_rounding():
    tied = {8: -1.00002, 9: -1.0}
    drawn = {"ids": [7, 9, 3], "logprobs": [-0.5, -1.0, -9.0], "top_logprobs": [TOP[0], tied, {3: -9.0}]}
    check_logprobs_close([ONE], [other(**drawn)])
    for lost in ({9: -1.0}, {9: -1.0, 8: -1.0001}):  # only one side calls it a tie
        with pytest.raises(AssertionError, match="token 1: hf drew 8"):
            check_logprobs_close([ONE], [other(**{**drawn, "top_logprobs": [TOP[0], lost, {3: -9.0}]})])


def test_tolerance():
    without = [replace(ONE, rounding=None)]
    with pytest.raises(ValueError, match="give atol= in nats"):
        check_logprobs_close(without, without)
    apart = [other(logprobs=[-0.5, -1.01, -0.25])]
    check_logprobs_close(without, apart, atol=0.02)
    with pytest.raises(AssertionError, match=r"old: new gave it -1\.01"):
        check_logprobs_close(without, apart, ("old", "new"), atol=0.005)
    # A model that computes exactly is still allowed what a float32 number can hold.
    check_logprobs_close([replace(ONE, rounding=[0.0] * 3)], [other(logprobs=[-0.5, -1.0000002, -0.25])])


def test_other_prompts():
    with pytest.raises(ValueError, match="1 completions of hf and 2 of vllm are not of the same prompts"):
        check_logprobs_close([ONE], [ONE, ONE])
    with pytest.raises(ValueError, match="not of the same prompts"):
        check_logprobs_close([ONE], [other(prompt_ids=[1, 3])])
