"""The losses of verl and TRL as functions of a ``PolicyBatch``, so that ``gradient_of`` can check them."""

from __future__ import annotations

from types import SimpleNamespace

from pytest_rlregress.stack import InterfaceMissing


def verl_policy_loss(mode, whole_batch):
    """verl's clipped policy loss, and its trainer's mean over the micro batches.

    Args:
        mode: verl's ``loss_agg_mode``.
        whole_batch: Gives for a ``PolicyBatch`` what verl is told of the whole batch: ``batch_num_tokens`` and so on.
    """
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import ActorConfig

    config = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=2)

    def loss(batch):
        config.global_batch_info.clear()
        config.global_batch_info.update(whole_batch(batch))
        numbers = batch.old_log_probs, batch.log_probs, batch.advantages, batch.mask
        return compute_policy_loss_vanilla(*numbers, mode, config)[0] / batch.parts

    return loss


class Output(SimpleNamespace):
    """What a model returns."""


def trl_grpo_loss(qwen, folder, **settings):
    """The loss of TRL's GRPO trainer, with a model that gives the batch's log-probabilities.

    Args:
        qwen: The fixture ``tiny_qwen`` or ``sharp_qwen``: the trainer is made with its model.
        folder: For what the trainer writes.
        settings: Of ``GRPOConfig``.
    """
    import torch
    import trl
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=2,
        num_generations=2,
        **settings,
    )
    trainer = GRPOTrainer(
        model=qwen.model(),
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        processing_class=qwen.tokenizer(),
    )

    def loss(batch):
        trainer.current_gradient_accumulation_steps = batch.parts
        trainer.model.train()
        ids = torch.zeros_like(batch.mask)  # of two tokens the first is the sampled one

        def policy(input_ids, **inputs):
            """Gives logits, as TRL asks for up to 0.x, and what it has its models compute themselves since."""
            both = torch.stack([batch.log_probs, torch.log1p(-batch.log_probs.exp())], -1)
            logits = torch.nn.functional.pad(both, (0, 0, 0, 1))  # the last predicts nothing
            entropy = -(both.exp() * both).sum(-1).detach()
            return Output(logits=logits, log_probs=batch.log_probs, entropy=entropy)

        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": torch.ones_like(ids[:, :1]),
            "completion_ids": ids,
            "completion_mask": batch.mask,
            "advantages": batch.advantages,
            "old_per_token_logps": batch.old_log_probs,
            "ref_per_token_logps": batch.ref_log_probs,
            "num_items_in_batch": torch.tensor(batch.batch_tokens),
        }
        try:
            return trainer.compute_loss(policy, inputs)
        except AttributeError as error:
            if isinstance(error.obj, Output):
                raise InterfaceMissing(
                    f"answers for the model, of which trl {trl.__version__} asks more: {error}"
                ) from None
            raise

    return loss
