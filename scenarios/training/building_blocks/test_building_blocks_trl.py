"""TRL's losses, means, divergences and correction are the miniature step's, or differ as they must."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.scenarios.training.building_blocks.blocks import CLOSE, check_loss, gradient, off_policy
from pytest_rlregress.scenarios.training.building_blocks.trl_blocks import bias_correction, corrected_trl, grpo

pytestmark = pytest.mark.guards("building-blocks")
CORRECTED_KL = pytest.mark.needs("trl.trainer.grpo_config:GRPOConfig(use_bias_correction_kl)")


@pytest.mark.needs("trl")
@pytest.mark.parametrize(
    ("loss_type", "level", "mean"),
    [
        ("grpo", "token", "sequence-mean"),
        ("grpo", "sequence", "sequence-mean"),
        ("bnpo", "token", "token-mean"),
        ("dapo", "token", "token-mean"),
        ("dr_grpo", "token", "constant"),
    ],
)
def test_trl_loss(tiny_qwen, tmp_path, loss_type, level, mean):
    settings = grpo(loss_type=loss_type, importance_sampling_level=level, max_completion_length=20)
    theirs = trainers.trl_grpo_loss(tiny_qwen, tmp_path, **settings)
    batch = off_policy(0.25)
    found = theirs(batch)
    with act():
        check_loss(found, batch, level, mean, longest=20)


@pytest.mark.needs("trl")
@pytest.mark.parametrize("corrected", [False, pytest.param(True, marks=CORRECTED_KL)])
def test_trl_divergence(tiny_qwen, tmp_path, corrected):
    """beta times k3, of which TRL takes all; corrected it weighs by the ratio to the policy that sampled."""
    import torch

    batch = off_policy(0.25)
    with_it, without = (
        trainers.trl_grpo_loss(tiny_qwen, tmp_path, **grpo(beta=beta, **bias_correction(corrected)))(batch)
        for beta in (0.1, 0.0)
    )
    apart = batch.ref_log_probs - batch.log_probs
    ratio = (batch.log_probs - batch.old_log_probs).exp() if corrected else 1
    k3 = (apart.exp() - apart - 1) * ratio
    expected = 0.1 * ((k3 * batch.mask).sum(dim=1) / batch.mask.sum(dim=1)).mean()
    with act():
        torch.testing.assert_close((with_it - without).detach(), expected.detach(), **CLOSE)
        torch.testing.assert_close(gradient(with_it - without, batch), gradient(expected, batch), **CLOSE)


@pytest.mark.needs("trl.trainer.grpo_trainer:GRPOTrainer.vllm_importance_sampling_mode")
@pytest.mark.parametrize("mode", ["sequence_mask", "sequence_truncate", "token_mask", "token_truncate"])
def test_trl_corrects_for_the_engine(tiny_qwen, tmp_path, mode):
    """The default with vLLM: the loss times trainer's by engine's probability, cut off or left out above 3."""
    import torch

    from pytest_rlregress.fixtures.training_step import token_logprobs

    noise = [[0.0, 0.0], [0.5, -0.2, 0.1], [2.0, -0.5], [0.7, 0.7]]
    trainer, loss, batch = corrected_trl(tmp_path, tiny_qwen, mode, noise)
    mask = batch["completion_mask"].float()
    off = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in noise], batch_first=True)
    ratio = (off.sum(dim=1, keepdim=True) if mode.startswith("sequence") else off).exp()
    ratio = ratio.clamp(max=3) if mode.endswith("truncate") else ratio * (ratio <= 3)
    rewards = torch.tensor([1.0, 0.0, 0.25, 0.5])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    found = {name: p.grad for name, p in trainer.model.named_parameters()}
    model = tiny_qwen.model().train()
    logprobs = token_logprobs(model, ids, seen, mask.shape[1])
    each = -advantages[:, None] * ratio * (logprobs - logprobs.detach()).exp() * mask
    expected = (each.sum(dim=1) / mask.sum(dim=1)).mean()
    expected.backward()
    with act():
        torch.testing.assert_close(loss.detach(), expected.detach(), atol=1e-5, rtol=1e-5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-3)
