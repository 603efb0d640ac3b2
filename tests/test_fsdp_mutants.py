"""The step on several processes must fail when it should: each mutant has one fault, in its ranks or on the way."""

from __future__ import annotations

import re
import time

import pytest

pytestmark = [
    pytest.mark.isolated(group="fsdp-step", timeout=300),
    pytest.mark.needs("torch", "transformers", "tensordict", "vllm", "vllm-engine"),
]

STALE = "engine and trainer disagree after the update: .* stale or incomplete"
DISAGREE = "engine and trainer disagree before the update"
DIFFER = "2 processes differ from one in "


# -- faults: each is called in every rank before anything else, and replaces what the rank does ------------------------


def after_the_first(fault):
    """``gathered`` as it is for the weights a run begins with; from then on ``fault(first, new)`` of what it gives."""
    from pytest_rlregress.fixtures import fsdp_rank

    sound, first = fsdp_rank.gathered, {}

    def gathered(rank):
        whole = sound(rank)
        if whole is None or not first:
            first.update(whole or {})
            return whole
        return fault(first, whole)

    fsdp_rank.gathered = gathered


def stale_head():
    after_the_first(lambda first, new: {name: one for name, one in new.items() if name != "lm_head.weight"})


def shards_of_one_rank():
    import torch

    def half(first, new):
        return {name: torch.cat([one[: len(one) // 2], first[name][len(one) // 2 :]]) for name, one in new.items()}

    after_the_first(half)


def another_temperature():
    from pytest_rlregress.fixtures import fsdp_rank

    def warmer(model, rows, packed):
        handle = model.lm_head.register_forward_hook(lambda module, inputs, logits: logits / 0.9)
        try:
            return sound(model, rows, packed)
        finally:
            handle.remove()

    sound, fsdp_rank.response_logprobs = fsdp_rank.response_logprobs, warmer


def mask_off_by_one():
    from pytest_rlregress.fixtures import fsdp_rank

    def rows_of(rank, batch):
        return sound(rank, {**batch, "response_mask": batch["response_mask"].roll(1, 1)})

    sound, fsdp_rank.rows_of = fsdp_rank.rows_of, rows_of


def loss_with_a_mask_off_by_one():
    from pytest_rlregress.fixtures import fsdp_rank

    def token_mean(logprobs, reference, rows, settings):
        return sound(logprobs, reference, {**rows, "response_mask": rows["response_mask"].roll(1, 1)}, settings)

    sound, fsdp_rank.token_mean = fsdp_rank.token_mean, token_mean


def rows_that_see_each_other():
    import torch

    from pytest_rlregress.fixtures import fsdp_rank

    def response_logprobs(model, rows, packed):
        attended = rows["attention_mask"].bool()
        positions = torch.zeros_like(rows["position_ids"]).masked_scatter(attended, torch.arange(attended.sum()))
        return sound(model, {**rows, "position_ids": positions}, packed)

    sound, fsdp_rank.response_logprobs = fsdp_rank.response_logprobs, response_logprobs


def reference_that_trains():
    import torch

    from pytest_rlregress.fixtures import fsdp_rank

    def reference_logprobs(rank, rows):
        with torch.no_grad():
            return fsdp_rank.response_logprobs(rank.model, rows, rank.settings.packed)

    fsdp_rank.reference_logprobs = reference_logprobs


def no_kl_in_the_gradient():
    from pytest_rlregress.fixtures import fsdp_rank

    def token_mean(*arguments):
        surrogate, kl = sound(*arguments)
        return surrogate, kl.detach()

    sound, fsdp_rank.token_mean = fsdp_rank.token_mean, token_mean


def gradients_summed_over_ranks():
    import torch

    def clip_grad_norm_(parameters, most):
        parameters = [*parameters]
        for parameter in parameters:
            parameter.grad.mul_(2)
        return sound(parameters, most)

    sound, torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_, clip_grad_norm_


def ranks_that_weigh_the_same():
    from pytest_rlregress.fixtures import fsdp_rank

    def summed(value):
        return sound(value) if value.is_floating_point() else 2 * value  # of its own tokens

    sound, fsdp_rank.summed = fsdp_rank.summed, summed


def micro_batches_that_weigh_the_same():
    import torch

    from pytest_rlregress.fixtures import fsdp_rank

    fsdp_rank.share_of = lambda tokens, all_tokens: torch.tensor(1 / 6)  # three of each of two ranks


def gradients_that_pile_up():
    import torch

    torch.optim.Optimizer.zero_grad = lambda self: None


def frozen_parameter():
    from pytest_rlregress.fixtures import fsdp_rank

    def make_policy(*arguments):
        model = sound(*arguments)
        model.get_parameter("model.norm.weight").requires_grad_(False)
        return model

    sound, fsdp_rank.make_policy = fsdp_rank.make_policy, make_policy


def killed_between_micro_batches():
    import os
    import signal

    import torch.distributed as dist

    from pytest_rlregress.fixtures import fsdp_rank

    def token_mean(*arguments):
        if dist.get_rank() == 1 and next(calls):
            os.kill(os.getpid(), signal.SIGKILL)
        return sound(*arguments)

    calls, sound = iter([False, True]), fsdp_rank.token_mean
    fsdp_rank.token_mean = token_mean


# -- and the complaint meant for each ----------------------------------------------------------------------------------


@pytest.fixture
def complaint(fsdp_step):
    """``complaint(fault, steps)``: what is said of a run with that fault."""
    from pytest_rlregress.fixtures.fsdp_record import check

    def complaint(fault, steps=1, **settings):
        *sound, faulty = fsdp_step.run(steps, prepare=fault, **settings)
        for record in sound:
            check(record, fsdp_step.settings)
        with pytest.raises(AssertionError) as raised:
            check(faulty, fsdp_step.settings)
        return str(raised.value)

    return complaint


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (stale_head, STALE),
        (shards_of_one_rank, STALE),
        (another_temperature, DISAGREE),
        (mask_off_by_one, "the mask of completion"),
        (loss_with_a_mask_off_by_one, DIFFER + "grad_norm"),
        (rows_that_see_each_other, DISAGREE),
        (no_kl_in_the_gradient, DIFFER + "grad_norm"),
        (gradients_summed_over_ranks, DIFFER + "grad_norm"),
        (ranks_that_weigh_the_same, DIFFER + "loss"),
        (micro_batches_that_weigh_the_same, DIFFER + "loss"),
        (frozen_parameter, "the update did not move model.norm.weight"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "seen",
)
def test_fault_is_seen(complaint, fault, message):
    steps = 2 if fault is no_kl_in_the_gradient else 1  # there is none in the first
    assert re.search(message, complaint(fault, steps))


def test_reference_that_trains_is_seen(complaint):
    assert re.search(DIFFER + "(loss|kl)", complaint(reference_that_trains, steps=2))


def test_gradients_that_pile_up_are_seen(complaint):
    assert re.search(DIFFER + "grad_norm", complaint(gradients_that_pile_up, steps=2))


@pytest.mark.needs("peft")
def test_adapters_left_out_of_the_sync_are_seen(complaint, monkeypatch):
    from pytest_rlregress.fixtures import fsdp_step

    def engine_weights(tiny_qwen, settings, state):
        return tiny_qwen.model().state_dict()

    monkeypatch.setattr(fsdp_step, "engine_weights", engine_weights)
    assert re.search(DISAGREE, complaint(None, lora_rank=8))


def test_unequal_ranks_are_what_the_step_has(fsdp_step):
    """Else a mean of the ranks' means would be the mean of all tokens."""
    [record] = fsdp_step.run(steps=1)
    lengths = sorted(map(len, record.completions))
    assert sum(lengths[: len(lengths) // 2]) < sum(lengths[len(lengths) // 2 :])


def test_rank_killed_in_a_step_is_named_in_time(fsdp_step):
    from pytest_rlregress.fixtures.rank_processes import RankError

    begun = time.monotonic()
    with pytest.raises(RankError, match="in train: rank 1 of 2 died of SIGKILL"):
        fsdp_step.run(steps=1, prepare=killed_between_micro_batches)
    assert time.monotonic() - begun < fsdp_step.settings.seconds
    assert fsdp_step.run(steps=1), "the next run has ranks of its own"


# -- a checkpoint without one of its parts -----------------------------------------------------------------------------


def load_without(part):
    from torch.distributed import checkpoint

    from pytest_rlregress.fixtures import fsdp_rank

    def load(rank, folder):
        state = fsdp_rank.state_of(rank)
        left = state.pop(part)
        checkpoint.load(state, checkpoint_id=folder)
        fsdp_rank.restore(rank, {**state, part: left})

    fsdp_rank.load = load


def without_weights():
    load_without("model")


def without_optimizer():
    load_without("optimizer")


def without_random_state():
    load_without("random")


def without_step():
    load_without("step")


def test_a_resumed_step_without_numbers_is_not_the_same():
    from pytest_rlregress.fixtures.fsdp_record import check_resumed

    with pytest.raises(AssertionError, match="only nothing compared"):
        check_resumed({})


@pytest.mark.parametrize("fault", [without_weights, without_optimizer, without_random_state, without_step])
def test_incomplete_checkpoint_is_seen(fsdp_step, tmp_path, fault):
    from pytest_rlregress.fixtures.fsdp_record import check_resumed

    differences = fsdp_step.resume(tmp_path / "checkpoint", prepare=fault, dropout=0.1)
    with pytest.raises(AssertionError, match="resumed, the step is another one: it differs in"):
        check_resumed(differences)
