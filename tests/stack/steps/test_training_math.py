"""The step's loss, advantages and batch; scenarios/training/building_blocks holds them against verl's and TRL's."""

from __future__ import annotations

import heapq
import random
import statistics

import pytest

from pytest_rlregress.fixtures.step_settings import StepSettings
from pytest_rlregress.hardware.profiles import load_profiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.isolated(group="training-math", timeout=300),
    pytest.mark.needs("torch", "transformers"),
]


def neighbouring_shares(longest):
    """Every two shares k/n, n up to ``longest``, that have none between them (a Farey sequence)."""
    a, b, c, d = 0, 1, 1, longest
    while c <= d:
        yield a / b, c / d
        k = (longest + b) // d
        a, b, c, d = c, d, k * c - a, k * d - b


@pytest.mark.parametrize("profile", sorted(load_profiles()))
def test_sound_advantages_of_any_profile_are_called_normalised(profile):
    """Rewards are shares of tokens. Where they nearly agree, epsilon and float32 show in what is sound all the same."""
    import torch

    from pytest_rlregress.fixtures.step_properties import advantage_slack, wanted_advantages
    from pytest_rlregress.fixtures.training_step import EPSILON, group_advantages

    step, draw = load_profiles()[profile].step, random.Random(0)
    size, longest = step["samples_per_prompt"], step["response_length"]
    closest = heapq.nsmallest(3000, neighbouring_shares(longest), key=lambda pair: pair[1] - pair[0])
    groups = [[0.5] * size, *([*pair, *draw.choices(pair, k=size - 2)] for pair in closest)]
    for _ in range(10_000):
        lengths = [draw.randint(1, longest) for _ in range(size)]
        groups.append([draw.randint(0, length) / length for length in lengths])
    found = group_advantages(torch.tensor(groups).flatten(), size).view(-1, size).tolist()
    for rewards, advantages in zip(groups, found, strict=True):
        wanted, slack = wanted_advantages([rewards], EPSILON), advantage_slack(statistics.stdev(rewards), EPSILON)
        off = [abs(one - right) for one, right in zip(advantages, wanted, strict=True)]
        assert max(off) <= slack
        if statistics.stdev(rewards) > 1e-3:
            assert slack < 0.01 * max(map(abs, wanted))


def test_batch_is_laid_out_as_in_verl():
    import torch

    from pytest_rlregress.agreement.completions import Completion
    from pytest_rlregress.fixtures.step_rollout import to_batch

    completions = [
        Completion([7, 8], [1, 900], [-1.0, -2.0], "stop"),
        Completion([6, 7, 8], [901, 902, 903], [-3.0, -4.0, -5.0], "length"),
    ]
    batch = to_batch(completions, torch.tensor([0.5, 0.0]), torch.tensor([0.7, -0.7]), StepSettings(response_length=3))
    torch.testing.assert_close(batch.pop("advantages"), torch.tensor([0.7, -0.7]))
    assert {key: value.tolist() for key, value in batch.items()} == {
        "prompts": [[0, 7, 8], [6, 7, 8]],
        "responses": [[1, 900, 0], [901, 902, 903]],
        "input_ids": [[0, 7, 8, 1, 900, 0], [6, 7, 8, 901, 902, 903]],
        "attention_mask": [[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
        "position_ids": [[0, 0, 1, 2, 3, 3], [0, 1, 2, 3, 4, 5]],
        "response_mask": [[1, 1, 0], [1, 1, 1]],
        "rollout_log_probs": [[-1.0, -2.0, 0.0], [-3.0, -4.0, -5.0]],
        "rewards": [0.5, 0.0],
    }
