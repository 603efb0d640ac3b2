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


RANKS = 2
PROMPT = 3


def verls(batch, rows=None, name="vanilla", mode="seq-mean-token-mean", weights=None, **settings):
    """Return verl's loss of the batch by ``ppo_loss``, as its workers call it: a micro batch after the other.

    Args:
        batch: Its rows without padding are what verl is given, behind a prompt; log-probabilities are of all tokens.
        rows: How many rows each micro batch has; all in one by default.
        name: The policy loss, as verl registers it.
        mode: verl's ``loss_agg_mode``.
        weights: Those of rollout correction by token.
        settings: Further ones of verl's ``ActorConfig``.
    """
    import torch

    trainers.core_algos()
    try:
        from verl.utils import tensordict_utils
        from verl.workers.config import ActorConfig
        from verl.workers.utils.losses import ppo_loss
    except ImportError as error:
        raise InterfaceMissing(f"needs verl.workers.utils.losses.ppo_loss, here: {error}") from error
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=LOW,
        clip_ratio_high=HIGH,
        loss_agg_mode=mode,
        policy_loss={"loss_mode": name},
        **settings,
    )
    lengths = (batch.sequences >= 0).sum(dim=1).tolist()
    responses = {
        "responses": torch.ones_like(batch.mask),
        "response_mask": batch.mask,
        "old_log_probs": batch.old_log_probs,
        "advantages": batch.advantages,
        "ref_log_prob": batch.ref_log_probs,
        **({} if weights is None else {"rollout_is_weights": weights}),
    }
    told = {"dp_size": RANKS, "batch_num_tokens": batch.batch_tokens, "global_batch_size": batch.batch_sequences}
    losses = []
    for part in torch.arange(len(lengths)).split(rows or len(lengths)):
        widths = [lengths[row] for row in part]
        tensors = {
            field: _nested([tensor[row, :width] for row, width in zip(part, widths, strict=True)])
            for field, tensor in responses.items()
        }
        tensors["prompts"] = _nested([torch.ones(PROMPT, dtype=torch.long) for _ in part])
        # A token's log-probability is at the place before it.
        around = [torch.nn.functional.pad(batch.log_probs[row, : lengths[row]], (PROMPT - 1, 1)) for row in part]
        data = tensordict_utils.get_tensordict(tensors, {**told, "global_token_num": sum(widths)})
        losses.append(ppo_loss(config, {"log_probs": _nested(around)}, data)[0])
    return sum(losses) / RANKS  # FSDP takes the mean of the ranks'


def _nested(rows):
    """Return rows of unequal lengths as one tensor."""
    import torch

    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


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


def corrected_trl(folder, qwen, mode, noise):
    """Return TRL's loss of one group whose engine's log-probabilities are off, with all that it is computed from.

    Args:
        folder: For what the trainer writes.
        qwen: The fixture ``tiny_qwen`` or ``sharp_qwen``.
        mode: TRL's ``vllm_importance_sampling_mode``.
        noise: By completion and token, how far the engine's log-probabilities are below the trainer's, in nats.

    Returns:
        The trainer with the loss's gradient in its model, the loss, and the batch that TRL made.
    """
    import torch

    from pytest_rlregress.scenarios.tokens import grpo as grpo_trainer

    rewards = iter([1.0, 0.0, 0.25, 0.5])
    trainer = grpo_trainer.trainer(
        qwen.directory, qwen.tokenizer(), lambda completions, **_: [next(rewards) for _ in completions], folder, 4
    )
    if not hasattr(trainer, "vllm_importance_sampling_mode"):
        raise InterfaceMissing("needs GRPOTrainer.vllm_importance_sampling_mode, which this release doesn't have")
    draw = torch.Generator().manual_seed(0)
    sampled = [torch.randint(20, 1000, (len(row),), generator=draw).tolist() for row in noise]
    # Only what was generated is given to the trainer: it needs no engine for the rest.
    trainer.use_vllm, trainer.mask_truncated_completions, trainer.loss_type = True, False, "grpo"
    trainer.vllm_importance_sampling_mode = mode
    trainer._generate_single_turn = lambda *_, **__: (sampled, [[0.0] * len(row) for row in noise])
    rows = [{"prompt": grpo_trainer.PROMPT} for _ in noise]
    known = trainer._generate_and_score_completions(rows)["old_per_token_logps"]
    engine = [(known[row, : len(off)] - torch.tensor(off)).tolist() for row, off in enumerate(noise)]
    rewards = iter([1.0, 0.0, 0.25, 0.5])
    trainer._generate_single_turn = lambda *_, **__: (sampled, engine)
    batch = trainer._generate_and_score_completions(rows)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return trainer, loss, batch
