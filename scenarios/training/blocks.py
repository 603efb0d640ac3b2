"""The miniature step's and verl's loss on one batch, and the comparison of a loss with the miniature step's."""

from __future__ import annotations

from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.stack import InterfaceMissing

LOW, HIGH = 0.2, 0.28
# In float64. Measured: at most 2e-15, and 2e-17 of a loss or its gradient. Allowed is the 1e-8 that verl adds to a
# number of tokens; a loss that is off by a millionth is out.
CLOSE = {"atol": 1e-9, "rtol": 1e-8}


def off_policy(noise):
    """Completions whose log-probabilities moved by about ``noise`` nats since they were sampled, some clipped."""
    from dataclasses import replace

    import torch

    from pytest_rlregress.agreement.policy_batch import drawn_batch

    batch = drawn_batch((8, 3, 6, 2, 7, 5))
    draw = torch.Generator().manual_seed(1)
    advantages = torch.randn(len(batch.mask), 1, generator=draw).expand(batch.mask.shape)
    moved = batch.old_log_probs + noise * torch.randn(batch.mask.shape, generator=draw)
    log_probs = moved.clamp(max=-0.01)  # no token is likelier than certain
    batch = replace(batch, advantages=advantages, log_probs=log_probs).with_floats(lambda tensor: tensor.double())
    return replace(batch, log_probs=batch.log_probs.requires_grad_())


def ours(batch, level="token"):
    """The miniature step's loss."""
    from pytest_rlregress.fixtures import training_step

    return training_step.policy_loss(
        batch.log_probs, batch.old_log_probs, batch.advantages[:, 0], batch.mask, level, LOW, HIGH
    )


def verls(batch, name="vanilla", mode="seq-mean-token-mean"):
    """The loss that verl registers under ``name``, averaged as ``mode`` says."""
    algos = trainers.core_algos()
    from verl.workers.config import ActorConfig

    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=LOW, clip_ratio_high=HIGH
    )
    loss, _ = algos.get_policy_loss_fn(name)(
        old_log_prob=batch.old_log_probs,
        log_prob=batch.log_probs,
        advantages=batch.advantages,
        response_mask=batch.mask,
        loss_agg_mode=mode,
        config=config,
    )
    return loss


def gradient(loss, batch):
    """The gradient of the batch's log-probabilities."""
    import torch

    return torch.autograd.grad(loss, batch.log_probs)[0]


def weight_of_rows(batch, mean, longest):
    """How much more than in a mean of each completion's mean the tokens of a row weigh."""
    lengths = batch.mask.sum(dim=1, keepdim=True).double()
    sums = {"sequence-mean": 1 / lengths, "token-mean": len(lengths) / lengths.sum(), "sum": 1, "constant": 1 / longest}
    return lengths * sums[mean]


def check_loss(theirs, batch, level="token", mean="sequence-mean", longest=1):
    """Their gradient is ours, each row's times the weight that their mean gives it; with our mean so is the loss."""
    import torch

    expected = gradient(ours(batch, level), batch) * weight_of_rows(batch, mean, longest)
    assert expected.count_nonzero(), "no token has a gradient: nothing is compared"
    torch.testing.assert_close(gradient(theirs, batch), expected, **CLOSE)
    if mean == "sequence-mean":
        torch.testing.assert_close(theirs.detach(), ours(batch, level).detach(), **CLOSE)


def grpo(**settings):
    """Settings of ``GRPOConfig`` for the losses here."""
    return {"loss_type": "grpo", "beta": 0.0, "epsilon": LOW, "epsilon_high": HIGH, **settings}


def bias_correction(wanted):
    """The setting of ``GRPOConfig`` for it, none where TRL does not know it and it is not wanted."""
    import trl

    try:
        from trl import GRPOConfig
    except (ImportError, RuntimeError) as error:  # as in trl_grpo_loss
        raise InterfaceMissing(f"drives GRPOConfig, which trl {trl.__version__} cannot import here: {error}") from error
    if "use_bias_correction_kl" in GRPOConfig.__dataclass_fields__:
        return {"use_bias_correction_kl": wanted}
    if wanted:
        raise InterfaceMissing(f"drives GRPOConfig.use_bias_correction_kl, which trl {trl.__version__} has not")
    return {}
