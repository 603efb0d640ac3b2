"""The guards of the rollout scenarios catch remedies that are broken in a small way."""

from __future__ import annotations

import pytest

from pytest_rlregress.remedies import clamp_max_tokens, contiguous_ids
from pytest_rlregress.scenarios.rollout.test_max_tokens_overflow import check_clamped
from pytest_rlregress.scenarios.rollout.test_sigfpe_embedding import VIEWS, check_contiguous, ids_of

BUDGETS = [  # max_tokens, prompt_length, max_model_len
    (4000, 1297, 4096),
    (2798, 1297, 4096),
    (2799, 1297, 4096),
    (2800, 1297, 4096),
    (1, 4095, 4096),
    (1, 4096, 4096),
    (4000, 5000, 4096),
]


def no_clamp(max_tokens, prompt_length, max_model_len):
    return max_tokens


def one_too_many(max_tokens, prompt_length, max_model_len):
    return clamp_max_tokens(max_tokens, prompt_length - 1, max_model_len)


def one_too_few(max_tokens, prompt_length, max_model_len):
    return min(max_tokens, max_model_len - prompt_length - 1)


def without_the_prompt(max_tokens, prompt_length, max_model_len):
    return min(max_tokens, max_model_len)


def negative(max_tokens, prompt_length, max_model_len):
    return min(max_tokens, max_model_len - prompt_length)


def always_all_the_room(max_tokens, prompt_length, max_model_len):
    return clamp_max_tokens(max_model_len, prompt_length, max_model_len)


@pytest.mark.parametrize("budget", BUDGETS)
def test_clamp_passes_the_guards_check(budget):
    check_clamped(clamp_max_tokens, *budget)


@pytest.mark.parametrize(
    "twin", [no_clamp, one_too_many, one_too_few, without_the_prompt, negative, always_all_the_room]
)
def test_broken_clamp_is_caught(twin):
    caught = []
    for budget in BUDGETS:
        try:
            check_clamped(twin, *budget)
        except (AssertionError, pytest.fail.Exception) as error:
            caught.append(error)
    assert caught


def test_clamp_refuses_to_generate_nothing():
    with pytest.raises(ValueError, match="at least 1"):
        clamp_max_tokens(0, 10, 100)


def as_int32(ids):
    return ids.int().contiguous()


def still_a_view(ids):
    return ids.long()


def flattened_in_storage_order(ids):
    return ids.as_strided(ids.shape, (ids.shape[1], 1)).long().contiguous()


def through_bfloat16(ids):
    import torch

    return ids.to(torch.bfloat16).long().contiguous()


def transposed(ids):
    return ids.long().t().contiguous()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("view", VIEWS)
def test_contiguous_ids_pass_the_guards_check(view):
    check_contiguous(contiguous_ids, ids_of(view))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("twin", [as_int32, still_a_view, flattened_in_storage_order, through_bfloat16, transposed])
def test_broken_contiguous_ids_are_caught(twin):
    caught = []
    for view in VIEWS:
        try:
            check_contiguous(twin, ids_of(view))
        except AssertionError as error:
            caught.append(error)
    assert caught


@pytest.mark.needs("torch")
def test_contiguous_ids_refuses_floats():
    with pytest.raises(ValueError, match="does not hold every id"):
        contiguous_ids(ids_of("columns").float())
