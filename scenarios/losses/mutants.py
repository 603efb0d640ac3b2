"""What mutants of several failures of this area have in common."""

from __future__ import annotations


def advantages_without(*, finite=True, trained=True):
    """``group_advantages`` by another hand, with some of what it looks at left out."""

    def advantages(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
        import torch

        if not len(rewards) == len(response_mask) == len(groups):
            raise ValueError(f"{len(rewards)} rewards, {len(response_mask)} rows, {len(groups)} groups")
        found = torch.zeros_like(rewards)
        for group in dict.fromkeys(groups):
            rows = [
                row
                for row, one in enumerate(groups)
                if one == group
                and not (finite and not torch.isfinite(rewards[row]))
                and not (trained and not response_mask[row].any())
            ]
            own = rewards[rows]
            if len(rows) < 2 or (own == own[0]).all():
                continue
            deviation = own.double().std() + epsilon if normalise else 1
            found[rows] = ((own - own.double().mean()) / deviation).to(rewards.dtype)
        return found[:, None] * response_mask.bool()

    return advantages
