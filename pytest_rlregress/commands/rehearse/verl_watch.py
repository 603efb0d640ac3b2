"""Write down what verl's trainer makes advantages of; every process of a rehearsed run imports this with verl.

Where no group has a spread of rewards, 0 and 1 in turn take their place, so that there is a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from pytest_rlregress.fixtures import verl_recorder


def record_advantages(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``compute_advantage_for_multi_trajectories``: write each row's rewards, group and log-probabilities."""

    @functools.wraps(compute)
    def record_and_compute(data: Any, *arguments: Any, **named: Any) -> Any:
        mask = data.batch["response_mask"].bool()
        groups: dict[Any, list[int]] = {}
        for row, uid in enumerate(data.non_tensor_batch["uid"]):
            groups.setdefault(uid, []).append(row)
        own = data.batch["token_level_rewards"].sum(1)
        stubbed = all(len(set(own[rows].tolist())) == 1 for rows in groups.values())
        if stubbed:
            data.batch["token_level_rewards"] = make_stub(mask, groups)
        content = {
            "groups": list(groups.values()),
            "old_logprobs": [old[kept].tolist() for old, kept in zip(data.batch["old_log_probs"], mask, strict=True)],
            "own": own.tolist(),
            "used": data.batch["token_level_rewards"].sum(1).tolist(),
            "stubbed": stubbed,
        }
        verl_recorder.write("advantages", content)
        return compute(data, *arguments, **named)

    return record_and_compute


def make_stub(mask: torch.Tensor, groups: dict[Any, list[int]]) -> torch.Tensor:
    """Return rewards 0 and 1 in turn within each group, at each row's last token."""
    found = torch.zeros(mask.shape)
    for rows in groups.values():
        for row in rows[1::2]:
            found[row, int(mask[row].nonzero().max()) if mask[row].any() else 0] = 1.0
    return found


verl_recorder.WRAPPED.setdefault("verl.trainer.ppo.v1.utils", []).append(
    ("compute_advantage_for_multi_trajectories", record_advantages)
)
