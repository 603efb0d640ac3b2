"""verl's step on several processes must fail when it should: each alteration of verl, or of the way, has one fault."""

from __future__ import annotations

import time

import pytest
from altered_steps import assert_red
from altered_steps import replace_method as wrap

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.isolated(group="fsdp-step", timeout=300),
    pytest.mark.needs("torch", "transformers", "tensordict", "verl", "peft", "vllm", "vllm-engine"),
]

LORA = {"lora_rank": 8}


def engine_class():
    from verl.workers.engine.fsdp import FSDPEngineWithLMHead

    return FSDPEngineWithLMHead


# -- faults: each is called in every rank before anything else, and alters verl, or what the rank gives it -------------


def after_the_first(fault):
    """Weights as they are to begin with; from then on ``fault(first, new)`` of what verl sends."""
    first = {}

    def send(sound, *arguments, **named):
        weights, config = sound(*arguments, **named)
        new = {name: tensor.clone() for name, tensor in weights}
        if not first:
            first.update(new)
            return new.items(), config
        return fault(first, new).items(), config

    wrap(engine_class(), "get_per_tensor_param", send)


def stale_head():
    after_the_first(lambda first, new: {name: one for name, one in new.items() if name != "lm_head.weight"})


def shards_of_one_rank():
    import torch

    def half(first, new):
        return {name: torch.cat([one[: len(one) // 2], first[name][len(one) // 2 :]]) for name, one in new.items()}

    after_the_first(half)


def adapters_left_out_of_the_sync():
    def send(sound, *arguments, base_sync_done=False, **named):
        weights, config = sound(*arguments, base_sync_done=base_sync_done, **named)
        return ((name, 0 * tensor if "lora_B" in name else tensor) for name, tensor in weights), config

    wrap(engine_class(), "get_per_tensor_param", send)


def another_temperature():
    def prepare(sound, self, micro_batch):
        from verl.utils import tensordict_utils

        tensordict_utils.assign_non_tensor(micro_batch, temperature=0.9)
        return sound(self, micro_batch)

    wrap(engine_class(), "prepare_model_inputs", prepare)


def rows_that_see_each_other():
    def prepare(sound, *arguments, **named):
        inputs, others = sound(*arguments, **named)
        places = inputs["position_ids"]
        return {**inputs, "position_ids": places.new_tensor(range(places.numel())).view_as(places)}, others

    wrap(engine_class(), "prepare_model_inputs", prepare)


def with_data(change):
    """verl's loss of a micro batch that ``change(data)`` altered in place."""
    from verl.workers.utils import losses

    def loss(sound, config, model_output, data, dp_group=None):
        data = data.copy()
        change(data)
        return sound(config, model_output, data, dp_group)

    wrap(losses, "ppo_loss", loss)


def loss_with_a_mask_off_by_one():
    with_data(lambda data: data.set("response_mask", data["response_mask"].roll(1, 1)))


def padding_trained_on():
    from verl.workers.utils import padding

    def convert(sound, data):
        data["response_mask"] = data["response_mask"] | 1
        return sound(data)

    wrap(padding, "left_right_2_no_padding", convert)


def advantages_of_the_next_row():
    from verl.workers.utils import padding

    def convert(sound, data):
        data["advantages"] = data["advantages"].amax(1, True).add(data["advantages"].amin(1, True)).roll(1, 0)
        data["advantages"] = data["advantages"] * data["response_mask"]
        return sound(data)

    wrap(padding, "left_right_2_no_padding", convert)


def the_other_sign():
    with_data(lambda data: data.set("advantages", -data["advantages"]))


def reference_that_trains():
    from contextlib import nullcontext

    engine_class().disable_adapter = lambda self: nullcontext()


def no_kl_in_the_gradient():
    from verl.workers.utils import losses

    wrap(losses, "kl_penalty", lambda sound, *arguments, **named: sound(*arguments, **named).detach())


def gradients_summed_over_ranks():
    from verl.workers.engine.fsdp import transformer_impl

    def clip(sound, parameters, **named):
        parameters = [*parameters]
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(2)
        return sound(parameters, **named)

    wrap(transformer_impl, "fsdp2_clip_grad_norm_", clip)


def ranks_that_weigh_the_same():
    import torch.distributed as dist

    def own_tokens(sound, tensor, *arguments, **named):
        return sound(tensor, *arguments, **named) if tensor.is_floating_point() else tensor.mul_(2)

    wrap(dist, "all_reduce", own_tokens)


def micro_batches_that_weigh_the_same():
    from verl.utils import tensordict_utils

    def change(data):
        tokens = 8 * int(data["response_mask"].sum())  # 2 ranks with 4 micro batches each
        tensordict_utils.assign_non_tensor(data, batch_num_tokens=tokens)

    with_data(change)


def ranks_that_never_exchange_gradients():
    def never(sound, self, *, is_last_micro_batch):
        return sound(self, is_last_micro_batch=False)

    wrap(engine_class(), "_gradient_sync_context", never)


def gradients_that_pile_up():
    import torch

    torch.optim.Optimizer.zero_grad = lambda self, *arguments, **named: None


def learning_rate_that_stays():
    engine_class().lr_scheduler_step = lambda self: 0.0


def frozen_parameter():
    def build(sound, self):
        module = sound(self)
        module.get_parameter("model.norm.weight").requires_grad_(False)
        return module

    wrap(engine_class(), "_build_module", build)


def a_rank_with_the_others_rows():
    from pytest_rlregress.fixtures import fsdp_rank

    wrap(fsdp_rank, "rows_by_rank", lambda sound, *arguments: sound(*arguments)[:1] * 2)


def killed_between_micro_batches():
    import os
    import signal

    import torch.distributed as dist

    calls = iter([False, True])

    def change(data):
        if dist.get_rank() == 1 and next(calls):
            os.kill(os.getpid(), signal.SIGKILL)

    with_data(change)


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


def test_rank_killed_in_a_step_is_named_in_time(fsdp_step):
    from pytest_rlregress.fixtures.rank_processes import RankError

    begun = time.monotonic()
    with pytest.raises(RankError, match="in train: rank 1 of 2 died of SIGKILL"):
        fsdp_step.run(steps=1, prepare=killed_between_micro_batches)
    assert time.monotonic() - begun < fsdp_step.settings.seconds
    assert fsdp_step.run(steps=1), "the next run has ranks of its own"


def no_such_worker():
    import sys

    sys.modules["verl.workers.engine_workers"] = None


def padding_by_flash_attn():
    import tempfile
    from pathlib import Path

    from pytest_rlregress.fixtures import verl_on_cpu

    folder = Path(tempfile.mkdtemp())
    (folder / "utils").mkdir()
    (folder / "utils" / "attention_utils.py").write_text("from flash_attn.bert_padding import unpad_input")
    verl_on_cpu.folder_of = lambda package: folder


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (no_such_worker, r"verl\.workers\.engine_workers, which verl .* doesn't have"),
        (padding_by_flash_attn, r"verl\.utils\.attention_utils without flash-attn, which verl .* doesn't have"),
    ],
)
def test_verl_without_an_interface_is_missing(fsdp_step, lacking, message):
    from pytest_rlregress.stack import InterfaceMissing

    with pytest.raises(InterfaceMissing, match=message):
        fsdp_step.run(steps=1, prepare=lacking)


# -- a checkpoint without one of its parts -----------------------------------------------------------------------------


def load_without(name, replacement):
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    setattr(FSDPCheckpointManager, name, replacement)


def without_weights():
    load_without("should_load_model", False)


def without_optimizer():
    load_without("should_load_optimizer", False)


def without_random_state():
    load_without("load_rng_state", staticmethod(lambda state: None))


def test_rejects_a_resumed_step_without_numbers():
    from pytest_rlregress.fixtures.fsdp_record import check_resumed

    with pytest.raises(AssertionError, match="only nothing compared"):
        check_resumed({})


def without_schedule():
    from torch.optim.lr_scheduler import LambdaLR

    LambdaLR.load_state_dict = lambda self, state: None


@pytest.mark.parametrize("fault", [without_weights, without_optimizer, without_random_state, without_schedule])
def test_incomplete_checkpoint_is_seen(fsdp_step, tmp_path, fault):
    from pytest_rlregress.fixtures.fsdp_record import check_resumed

    differences = fsdp_step.resume(tmp_path / "checkpoint", prepare=fault, dropout=0.1)
    with pytest.raises(AssertionError, match="resumed, the step is another one: it differs in"):
        check_resumed(differences)
