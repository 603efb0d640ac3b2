"""The rule about batch sizes says what verl and TRL themselves do with the same numbers."""

from __future__ import annotations

import itertools
import math

import pytest

from pytest_rlregress.commands.preflight.batch_sizes import VerlSizes, batch_sizes, make_even
from pytest_rlregress.commands.preflight.command import read

pytestmark = [pytest.mark.isolated(group="preflight-batch-sizes"), pytest.mark.slow]


def accepted_by_verl(sizes: VerlSizes) -> bool:
    """Return whether a worker of verl's gets through its mini and micro batches."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.engine.utils import prepare_micro_batches

    ranks = sizes.cards // sizes.shared
    if sizes.mini * sizes.n % ranks:  # as train_mini_batch asserts
        return False
    multiple = math.lcm(ranks, sizes.mini * sizes.n)  # to which PPOTrainer._balance_batch pads a step
    rows = -(-sizes.train * sizes.n // multiple) * multiple
    batch = TensorDict({"ids": torch.zeros(rows // ranks, 1)}, [rows // ranks])
    tensordict_utils.assign_non_tensor(batch, use_dynamic_bsz=False, micro_batch_size_per_gpu=sizes.micro)
    try:
        for mini in tensordict_utils.make_iterator(batch, sizes.mini * sizes.n // ranks, epochs=1):
            prepare_micro_batches(mini)
    except AssertionError:
        return False
    return True


@pytest.mark.needs("verl")
def test_the_rule_is_verls_own():
    answers = set()
    for train, mini, n, cards, micro in itertools.product((4, 8), (2, 4, 8, 3), (1, 2, 5), (1, 2, 8), (1, 2, 3, 16)):
        sizes = VerlSizes(train, mini, n, cards, 1, micro)
        assert sizes.is_even == accepted_by_verl(sizes), sizes
        assert accepted_by_verl(make_even(sizes, too_large=mini > train, checks_train=True)), sizes
        answers.add(sizes.is_even)
    assert answers == {True, False}


@pytest.mark.needs("trl")
def test_the_rule_is_trls_own(tmp_path):
    from trl import GRPOConfig

    answers = set()
    file = tmp_path / "grpo.yaml"
    file.write_text("model_name_or_path: a\noutput_dir: out\n", encoding="utf-8")
    for batch, steps, generations, whole in itertools.product((1, 2, 4), (1, 2, 3), (2, 3, 8), (None, 6, 8)):
        given = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}
        given |= {"num_generations": generations} | ({"generation_batch_size": whole} if whole else {})
        run = read([str(file), "accelerate.num_processes=1", *(f"{key}={n}" for key, n in given.items())], {})
        found = list(batch_sizes(run))
        try:
            GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], **given)
        except ValueError:
            assert found, given
        else:
            assert not found, given
        answers.add(bool(found))
    assert answers == {True, False}
