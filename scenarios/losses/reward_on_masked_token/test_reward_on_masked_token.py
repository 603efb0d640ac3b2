import itertools

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.stack.lazy import np, torch

ESTIMATORS = pytest.mark.parametrize("estimator", ["gae", "reinforce-plus-plus"])


def returns_of(estimator, rewards, mask):
    """What verl gives back to each token; of a critic that says 0 everywhere."""
    from types import SimpleNamespace

    algos = trainers.core_algos()
    if estimator == "gae":
        _, returns = algos.compute_gae_advantage_return(rewards, torch.zeros_like(rewards), mask, 1.0, 1.0)
    else:
        config = SimpleNamespace(gamma=1.0)
        _, returns = algos.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=config)
    return returns


def check_returned(returns, mask, score):
    back = returns[mask.bool()].abs().sum().item()
    if not back:
        silent(f"a score of {score} is on a token that is not trained on: those that are get {back}")


@pytest.mark.reproduces("reward-on-masked-token")
@ESTIMATORS
def test_score_on_the_last_token(estimator):
    rewards, mask = torch.tensor([[0.0, 0.0, 0.0, 1.0]]), torch.tensor([[1, 1, 0, 0]])
    with act():
        check_returned(returns_of(estimator, rewards, mask), mask, 1.0)


@pytest.mark.reproduces("reward-on-masked-token")
def test_score_of_verls_reward_manager(tiny_qwen):
    """Two tokens by the policy, then two by a tool: the manager looks for the last token by the attention mask."""
    from verl.protocol import DataProto

    trainers.core_algos()
    from verl.workers.reward_manager import NaiveRewardManager

    columns = {"reward_model": [{"ground_truth": "42"}], "data_source": ["test"]}
    batch = DataProto.from_dict(
        tensors={
            "prompts": torch.tensor([[301, 302]]),
            "responses": torch.tensor([[303, 304, 305, 306, 0]]),
            "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 0]]),
        },
        non_tensors={name: np.array(rows, dtype=object) for name, rows in columns.items()},
    )
    rewards = NaiveRewardManager(tiny_qwen.tokenizer(), num_examine=0, compute_score=lambda **said: 1.0)(batch)
    mask = torch.tensor([[1, 1, 0, 0, 0]])
    with act():
        check_returned(returns_of("gae", rewards, mask), mask, rewards.sum().item())


def every_mask(tokens=4):
    return torch.tensor(list(itertools.product([0, 1], repeat=tokens)))


@pytest.mark.guards("reward-on-masked-token")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_score_is_on_the_last_trained_token(subject, dtype):
    with act():
        for masks in (every_mask(), every_mask().bool()):
            kept, scores = masks.clone(), torch.arange(1, len(masks) + 1, dtype=getattr(torch, dtype)) / 3
            given = scores.tolist()
            rewards = subject(scores, masks)
            assert (rewards.shape, rewards.dtype) == (masks.shape, scores.dtype)
            assert masks.equal(kept)
            assert scores.tolist() == given
            for score, row, mask in zip(given, rewards.tolist(), masks.tolist(), strict=True):
                wanted = [0.0] * len(mask)
                if any(mask):
                    wanted[max(place for place, trained in enumerate(mask) if trained)] = score
                assert row == wanted


@pytest.mark.guards("reward-on-masked-token")
@ESTIMATORS
def test_score_reaches_tokens_before_a_tool(subject, estimator):
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    with act():
        returns = returns_of(estimator, subject(torch.tensor([1.0, -2.0]), mask), mask)
    assert (returns * mask).tolist() == [[1, 1, 0, 0], [-2, -2, -2, -2]]
