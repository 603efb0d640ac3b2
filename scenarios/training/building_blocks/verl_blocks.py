"""verl's loss of a batch, by the function that its workers call."""

from __future__ import annotations

from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.scenarios.training.building_blocks.blocks import HIGH, LOW

RANKS = 2
PROMPT = 3


def verls(batch, rows=None, name="vanilla", mode="seq-mean-token-mean", weights=None, **settings):
    """Return verl's loss of the batch by ``ppo_loss``, as its workers call it: a micro batch after the other.

    Args:
        batch: Its padded rows are what verl is given, behind a prompt; log-probabilities are of all tokens.
        rows: How many rows each micro batch has; all in one by default.
        name: The policy loss, as verl registers it.
        mode: verl's ``loss_agg_mode``.
        weights: Those of rollout correction by token.
        settings: Further ones of verl's ``ActorConfig``.
    """
    import torch

    trainers.core_algos()
    from verl.utils import tensordict_utils
    from verl.workers.config import ActorConfig
    from verl.workers.utils.losses import ppo_loss

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
    lengths = (batch.sequences >= 0).sum(dim=1)
    prompts = torch.ones(len(lengths), PROMPT, dtype=torch.long)
    tensors = {
        "prompts": prompts,
        "responses": torch.ones_like(batch.mask, dtype=torch.long),
        "attention_mask": torch.cat([prompts, (batch.sequences >= 0).long()], dim=1),
        "response_mask": batch.mask,
        "old_log_probs": batch.old_log_probs,
        "advantages": batch.advantages,
        "ref_log_prob": batch.ref_log_probs,
        **({} if weights is None else {"rollout_is_weights": weights}),
    }
    told = {"dp_size": RANKS, "batch_num_tokens": batch.batch_tokens, "global_batch_size": batch.batch_sequences}
    losses = []
    for part in torch.arange(len(lengths)).split(rows or len(lengths)):
        # What the model gives out has no padding. A token's log-probability is at the place before it.
        around = [torch.nn.functional.pad(batch.log_probs[row, : lengths[row]], (PROMPT - 1, 1)) for row in part]
        output = torch.nested.as_nested_tensor(around, layout=torch.jagged)
        of_part = {field: tensor[part] for field, tensor in tensors.items()}
        data = tensordict_utils.get_tensordict(of_part, {**told, "global_token_num": int(lengths[part].sum())})
        losses.append(ppo_loss(config, {"log_probs": output}, data)[0])
    return sum(losses) / RANKS  # FSDP takes the mean of the ranks'
