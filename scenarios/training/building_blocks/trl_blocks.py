"""TRL's settings of a loss, and its loss of a group whose engine disagrees with the trainer."""

from __future__ import annotations

from pytest_rlregress.scenarios.training.building_blocks.blocks import HIGH, LOW


def grpo(**settings):
    """Settings of ``GRPOConfig`` for the losses here."""
    return {"loss_type": "grpo", "beta": 0.0, "epsilon": LOW, "epsilon_high": HIGH, **settings}


def bias_correction(wanted):
    """The setting of ``GRPOConfig`` for it; none for a release that doesn't know it, and doesn't correct."""
    from trl import GRPOConfig

    known = "use_bias_correction_kl" in GRPOConfig.__dataclass_fields__
    return {"use_bias_correction_kl": wanted} if known else {}


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
