"""verl's step on several processes must fail when it should: each alteration of verl, or of the way, has one fault."""

from __future__ import annotations

import functools
import os
import signal
from contextlib import nullcontext

import pytest
from altered_steps import alters, assert_red

from pytest_rlregress.fixtures import verl_on_cpu
from pytest_rlregress.fixtures.fsdp_record import check_resumed
from pytest_rlregress.fixtures.rank_processes import RankError
from pytest_rlregress.stack import InterfaceMissing

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.isolated(group="fsdp-step", timeout=300),
    pytest.mark.needs("torch", "transformers", "tensordict", "verl", "peft", "vllm", "vllm-engine"),
]

LORA = {"lora_rank": 8}


# -- faults: each is called in every rank before anything else, and alters verl, or what the rank gives it -------------

ENGINE = "verl.workers.engine.fsdp:FSDPEngineWithLMHead"
#: What verl sends to its engine, and how it takes the padding off a batch.
SENT = f"{ENGINE}.get_per_tensor_param"
PADDING = "verl.workers.utils.padding:left_right_2_no_padding"


def after_the_first(fault):
    """Weights as they are to begin with; from then on ``fault(first, new)`` of what verl sends."""
    first = {}

    @alters(SENT)
    @functools.wraps(fault)
    def send(sound, *arguments, **named):
        weights, config = sound(*arguments, **named)
        new = {name: tensor.clone() for name, tensor in weights}
        if not first:
            first.update(new)
            return new.items(), config
        return fault(first, new).items(), config

    return send


@after_the_first
def stale_head(first, new):
    return {name: one for name, one in new.items() if name != "lm_head.weight"}


@after_the_first
def shards_of_one_rank(first, new):
    import torch

    return {name: torch.cat([one[: len(one) // 2], first[name][len(one) // 2 :]]) for name, one in new.items()}


@alters(SENT)
def adapters_left_out_of_the_sync(sound, *arguments, base_sync_done=False, **named):
    weights, config = sound(*arguments, base_sync_done=base_sync_done, **named)
    return ((name, 0 * tensor if "lora_B" in name else tensor) for name, tensor in weights), config


@alters(f"{ENGINE}.prepare_model_inputs")
def another_temperature(sound, self, micro_batch):
    from verl.utils import tensordict_utils

    tensordict_utils.assign_non_tensor(micro_batch, temperature=0.9)
    return sound(self, micro_batch)


@alters(f"{ENGINE}.prepare_model_inputs")
def rows_that_see_each_other(sound, *arguments, **named):
    inputs, others = sound(*arguments, **named)
    places = inputs["position_ids"]
    return {**inputs, "position_ids": places.new_tensor(range(places.numel())).view_as(places)}, others


def of_data(change):
    """verl's loss of a micro batch that ``change(data)`` altered in place."""

    @alters("verl.workers.utils.losses:ppo_loss")
    @functools.wraps(change)
    def loss(sound, config, model_output, data, dp_group=None):
        data = data.copy()
        change(data)
        return sound(config, model_output, data, dp_group)

    return loss


@of_data
def loss_with_a_mask_off_by_one(data):
    data["response_mask"] = data["response_mask"].roll(1, 1)


@of_data
def the_other_sign(data):
    data["advantages"] = -data["advantages"]


@of_data
def micro_batches_that_weigh_the_same(data):
    from verl.utils import tensordict_utils

    tokens = 8 * int(data["response_mask"].sum())  # 2 ranks with 4 micro batches each
    tensordict_utils.assign_non_tensor(data, batch_num_tokens=tokens)


@of_data
def killed_between_micro_batches(data):
    import torch.distributed as dist

    if dist.get_rank() == 1 and next(CALLS):
        os.kill(os.getpid(), signal.SIGKILL)


CALLS = iter([False, True])


@alters(PADDING)
def padding_trained_on(sound, data):
    data["response_mask"] = data["response_mask"] | 1
    return sound(data)


@alters(PADDING)
def advantages_of_the_next_row(sound, data):
    data["advantages"] = data["advantages"].amax(1, True).add(data["advantages"].amin(1, True)).roll(1, 0)
    data["advantages"] = data["advantages"] * data["response_mask"]
    return sound(data)


@alters(f"{ENGINE}.disable_adapter")
def reference_that_trains(sound, self):
    return nullcontext()


@alters("verl.workers.utils.losses:kl_penalty")
def no_kl_in_the_gradient(sound, *arguments, **named):
    return sound(*arguments, **named).detach()


@alters("verl.workers.engine.fsdp.transformer_impl:fsdp2_clip_grad_norm_")
def gradients_summed_over_ranks(sound, parameters, **named):
    parameters = [*parameters]
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(2)
    return sound(parameters, **named)


@alters("torch.distributed:all_reduce")
def ranks_that_weigh_the_same(sound, tensor, *arguments, **named):
    return sound(tensor, *arguments, **named) if tensor.is_floating_point() else tensor.mul_(2)


@alters(f"{ENGINE}._gradient_sync_context")
def ranks_that_never_exchange_gradients(sound, self, *, is_last_micro_batch):
    return sound(self, is_last_micro_batch=False)


@alters("torch.optim:Optimizer.zero_grad")
def gradients_that_pile_up(sound, self, *arguments, **named):
    pass


@alters(f"{ENGINE}.lr_scheduler_step")
def learning_rate_that_stays(sound, self):
    return 0.0


@alters(f"{ENGINE}._build_module")
def frozen_parameter(sound, self):
    module = sound(self)
    module.get_parameter("model.norm.weight").requires_grad_(False)
    return module


@alters("pytest_rlregress.fixtures.fsdp_rank:rows_by_rank")
def a_rank_with_the_others_rows(sound, *arguments):
    return sound(*arguments)[:1] * 2


# -- and the property meant for each -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "wanted", "settings"),
    [
        (stale_head, "agreement after", {}),
        (shards_of_one_rank, "agreement after", {}),
        (adapters_left_out_of_the_sync, "agreement", LORA),
        (another_temperature, "agreement", {}),
        (rows_that_see_each_other, "agreement", {}),
        (loss_with_a_mask_off_by_one, "loss|gradient norm", {}),
        (padding_trained_on, "mask: covers", {}),
        (advantages_of_the_next_row, "advantages", {}),
        (the_other_sign, "sign", {}),
        (reference_that_trains, "loss", LORA),
        (no_kl_in_the_gradient, "gradient norm", LORA),
        (gradients_summed_over_ranks, "gradient norm", {}),
        (ranks_that_weigh_the_same, "loss", {}),
        (micro_batches_that_weigh_the_same, "loss", {}),
        (ranks_that_never_exchange_gradients, "update|gradient norm", {}),
        (gradients_that_pile_up, "gradient norm", {"steps": 2}),
        (learning_rate_that_stays, "one process: update of", {"steps": 2}),
        (frozen_parameter, r"update: did not move model\.norm\.weight", {}),
        (a_rank_with_the_others_rows, "mask: covers", {}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_fault_is_seen(fsdp_step, fault, wanted, settings):
    records = fsdp_step.run(**{"steps": 1, **settings}, prepare=fault)
    assert_red(records, wanted, fsdp_step.settings.step.logprob_tolerance)


def test_unequal_ranks_are_what_the_step_has(fsdp_step):
    """Else a mean of the ranks' means would be the mean of all tokens."""
    [record] = fsdp_step.run(steps=1)
    lengths = sorted(map(len, record.completions))
    assert sum(lengths[: len(lengths) // 2]) < sum(lengths[len(lengths) // 2 :])


def test_rank_killed_in_a_step_is_named(fsdp_step):
    """As the rank that died: one that is waited for until the limit is told as late."""
    with pytest.raises(RankError, match="in train: rank 1 of 2 died of SIGKILL"):
        fsdp_step.run(steps=1, prepare=killed_between_micro_batches)
    assert fsdp_step.run(steps=1), "the next run has ranks of its own"


def no_such_worker():
    import sys

    sys.modules["verl.workers.engine_workers"] = None


def padding_by_flash_attn():
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp())
    (folder / "utils").mkdir()
    (folder / "utils" / "attention_utils.py").write_text("from flash_attn.bert_padding import unpad_input")
    verl_on_cpu.folder_of = lambda package: folder


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (no_such_worker, r"verl\.workers\.engine_workers, which verl .* doesn't have"),
        (padding_by_flash_attn, r"verl\.utils\.attention_utils to import without flash-attn; that of verl .* doesn't"),
    ],
)
def test_verl_without_an_interface_is_missing(fsdp_step, lacking, message):
    with pytest.raises(InterfaceMissing, match=message):
        fsdp_step.run(steps=1, prepare=lacking)


# -- a checkpoint without one of its parts -----------------------------------------------------------------------------


CHECKPOINT = "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager"


@alters(f"{CHECKPOINT}.load_checkpoint")
def without_weights(sound, self, *arguments, **named):
    type(self).should_load_model = False
    return sound(self, *arguments, **named)


@alters(f"{CHECKPOINT}.load_checkpoint")
def without_optimizer(sound, self, *arguments, **named):
    type(self).should_load_optimizer = False
    return sound(self, *arguments, **named)


@alters(f"{CHECKPOINT}.load_checkpoint")
def without_random_state(sound, self, *arguments, **named):
    type(self).load_rng_state = staticmethod(lambda state: None)
    return sound(self, *arguments, **named)


@alters("torch.optim.lr_scheduler:LambdaLR.load_state_dict")
def without_schedule(sound, self, state):
    pass


def test_rejects_a_resumed_step_without_numbers():
    with pytest.raises(AssertionError, match="only nothing compared"):
        check_resumed({})


@pytest.mark.parametrize("fault", [without_weights, without_optimizer, without_random_state, without_schedule])
def test_incomplete_checkpoint_is_seen(fsdp_step, tmp_path, fault):
    differences = fsdp_step.resume(tmp_path / "checkpoint", prepare=fault, dropout=0.1)
    with pytest.raises(AssertionError, match="resumed, the step is another one: it differs in"):
        check_resumed(differences)
