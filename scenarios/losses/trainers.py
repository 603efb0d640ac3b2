"""The losses of verl and TRL as functions of a ``PolicyBatch``, so that ``gradient_of`` can check them."""

from types import SimpleNamespace

from pytest_rlregress.stack import InterfaceMissing
from pytest_rlregress.stack.lazy import torch


def core_algos():
    """verl's module of advantages and losses."""
    from verl.trainer.ppo import core_algos

    return core_algos


def token_losses(batch):
    """PPO's clipped objective of each token."""
    ratio = (batch.log_probs - batch.old_log_probs).exp()
    return -torch.min(ratio * batch.advantages, ratio.clamp(0.8, 1.2) * batch.advantages)


def mean_over_ranks(part):
    """A loss, each half of the rows on a rank of its own: data parallelism takes the mean of the ranks' gradients.

    Args:
        part: ``part(losses, mask, batch)`` is the loss of one rank of two.
    """

    def loss(batch):
        halves = zip(token_losses(batch).chunk(2), batch.mask.chunk(2), strict=True)
        return sum(part(losses, mask, batch) for losses, mask in halves) / 2

    return loss


def check_nan_under_mask(subject, dtype, divisor, *arguments):
    """Check value and gradient of losses that are NaN where the mask is 0; 2**-20 and 2**-40 show the precision."""
    nan, least = float("nan"), {"float32": 2**-20, "float64": 2**-40, "bfloat16": 0}[dtype]
    losses = torch.tensor([[1.0 + least, nan, 3.0], [nan, nan, nan]], dtype=getattr(torch, dtype), requires_grad=True)
    for kind in (torch.int64, torch.bool):
        value = subject(losses, torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=kind), *arguments)
        (gradient,) = torch.autograd.grad(value, losses)
        assert (value.item(), value.shape, value.dtype) == ((4 + least) / divisor, (), losses.dtype)
        assert gradient.tolist() == [[1 / divisor, 0, 1 / divisor], [0, 0, 0]]


def verl_loss(mode, whole_batch):
    """The clipped objective, aggregated by verl, and a trainer's mean over the micro batches.

    Args:
        mode: verl's ``loss_agg_mode``.
        whole_batch: Gives for a ``PolicyBatch`` what verl is told of the whole batch: ``batch_num_tokens`` and so on.
    """
    algos = core_algos()

    def loss(batch):
        aggregated = algos.agg_loss(token_losses(batch), batch.mask, mode, **whole_batch(batch))
        return aggregated / batch.parts

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
    import trl
    from datasets import Dataset
    from packaging.version import Version
    from trl import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer  # trl's own __init__ hides why it can't be imported

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
        if Version(trl.__version__) < Version("0.26") and batch.advantages.any():
            raise InterfaceMissing(f"gives an advantage for each token, which trl {trl.__version__} does not take")
        trainer.current_gradient_accumulation_steps = batch.parts
        trainer.model.train()
        ids = torch.zeros_like(batch.mask)  # of two tokens the first is the sampled one

        def policy(input_ids, **inputs):
            """Gives logits, as TRL 0.26 asks for, and what TRL 1.16 has its models compute themselves."""
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
