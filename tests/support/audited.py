"""Batches as trainers have them between rollout and update, in which nothing is wrong, in each trainer's names."""

from __future__ import annotations

END, TOKENS = 2, 100


def made(rows=8, prompt=5, response=24, group=4, seed=0):
    """A batch of verl's, in which nothing is wrong, and the group of each row. Even rows end before the limit."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    groups = rows // group

    def each(values):
        return values.repeat_interleave(group, 0)

    prompt_mask = torch.arange(prompt) >= each(torch.randint(0, prompt, (groups, 1), generator=draw))
    prompts = each(torch.randint(3, TOKENS, (groups, prompt), generator=draw)) * prompt_mask
    lengths = torch.randint(min(10, response), response + 1, (rows,), generator=draw)
    lengths[::2] = lengths[::2].clamp(max=max(1, response - 1))
    lengths[1::2] = response
    last = torch.arange(rows), lengths - 1
    mask = torch.arange(response) < lengths[:, None]
    responses = torch.randint(3, TOKENS, (rows, response), generator=draw) * mask
    responses[last] = torch.where(lengths < response, END, responses[last])
    attention = torch.cat([prompt_mask, mask], dim=1)
    rollout = -torch.rand(rows, response, generator=draw) * 4 - 0.02
    scores = torch.zeros(rows, response)
    scores[last] = torch.arange(1, rows + 1) / 8
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention.long(),
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": mask.long(),
        "old_log_probs": rollout * 1.01 * mask,
        "rollout_log_probs": rollout * mask,
        "token_level_scores": scores,
        "advantages": torch.randn(rows, 1, generator=draw).expand(rows, response) * mask,
    }, [f"prompt {row // group}" for row in range(rows)]


def as_trl(batch):
    """The same batch as TRL's trainer hands it to its loss, with the rewards of rows."""
    prompt = batch["prompts"].shape[1]
    return {
        "prompt_ids": batch["prompts"],
        "prompt_mask": batch["attention_mask"][:, :prompt],
        "completion_ids": batch["responses"],
        "completion_mask": batch["attention_mask"][:, prompt:],
        "old_per_token_logps": batch["old_log_probs"],
        "sampling_per_token_logps": batch["rollout_log_probs"],
        "rewards": batch["token_level_scores"].sum(dim=1),
        "advantages": batch["advantages"][:, 0],
        "num_items_in_batch": batch["response_mask"].sum(),
    }


def as_openrlhf(batch, shifted=False):
    """The same batch as an Experience of OpenRLHF; ``shifted``: actions are all tokens but the first."""
    import torch

    extra = batch["prompts"].shape[1] - 1 if shifted else 0

    def wide(values):
        return torch.cat([values.new_zeros(len(values), extra), values], dim=1)

    return {
        "sequences": batch["input_ids"],
        "attention_mask": batch["attention_mask"],
        "action_mask": wide(batch["response_mask"]).bool(),
        "action_log_probs": wide(batch["old_log_probs"]),
        "rollout_log_probs": wide(batch["rollout_log_probs"]),
        "rewards": batch["token_level_scores"].sum(dim=1),
        "advantages": wide(batch["advantages"]),
    }


def last(batch, row):
    """The last token of a row's response, and of the whole row."""
    token = int(batch["response_mask"][row].sum()) - 1
    return token, token + batch["prompts"].shape[1]
