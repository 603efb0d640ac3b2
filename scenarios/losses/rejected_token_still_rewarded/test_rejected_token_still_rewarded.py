import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.stack.lazy import np, torch

REWARDS, REJECTED = [1.0, 0.0, 1.0, 10.0], 3
KEPT = [0, 1, 2]


def verl_advantages(rewards, mask, epsilon=1e-6):
    """Of one group's token rewards."""
    index = np.array(["a"] * len(rewards), dtype=object)
    return trainers.core_algos().compute_grpo_outcome_advantage(rewards, mask, index, epsilon=epsilon)[0]


@pytest.mark.reproduces("rejected-token-still-rewarded")
@pytest.mark.parametrize("place", ["last-token", "end-of-row"])
def test_rejected_trajectory(place):
    """A rejected trajectory's reward stays on its last token; an empty response's goes to -1, the end of the row."""
    rewards, mask = torch.zeros(4, 3), torch.tensor([[1, 1, 0]] * 3 + [[0, 0, 0]])
    rewards[:, 1] = torch.tensor(REWARDS)
    if place == "end-of-row":
        rewards[REJECTED] = rewards[REJECTED].roll(1)
    with act():
        found, wanted = verl_advantages(rewards, mask)[KEPT], verl_advantages(rewards[KEPT], mask[KEPT])
    moved = (found - wanted).abs().max().item()
    # The same rows in another order are the rounding there is.
    other_order = verl_advantages(rewards[KEPT].flip(0), mask[KEPT].flip(0)).flip(0)
    floor = max((other_order - wanted).abs().max().item(), torch.finfo(torch.float32).eps)
    if not moved <= 8 * floor:
        silent(f"a trajectory that is not trained on moves its group's advantages by {moved:.2f}")


@pytest.mark.guards("rejected-token-still-rewarded")
@pytest.mark.parametrize("normalise", [True, False], ids=["grpo", "dr-grpo"])
@pytest.mark.parametrize("dtype", ["int64", "bool", "float32"])
def test_as_if_it_were_not_there(subject, normalise, dtype):
    mask = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=getattr(torch, dtype))
    rewards = torch.tensor(REWARDS)
    with act():
        found = subject(rewards, mask, ["a"] * 4, normalise=normalise)
    wanted = subject(rewards[KEPT], mask[KEPT], ["a"] * 3, normalise=normalise)
    assert found[KEPT].equal(wanted)
    assert ((wanted != 0) == mask[KEPT].bool()).all()
    assert not found[REJECTED].any()
    assert rewards.tolist() == REWARDS, "the rewards given were changed"


@pytest.mark.guards("rejected-token-still-rewarded")
@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_as_verl_where_nothing_was_rejected(subject, epsilon):
    mask = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]])
    rewards = torch.tensor(REWARDS)[KEPT]
    deviation = rewards.double().std() + epsilon
    exact = ((rewards.double() - rewards.double().mean()) / deviation)[:, None] * mask
    verl = verl_advantages(torch.nn.functional.pad(rewards[:, None], (1, 1)), mask, epsilon)
    floor = max((verl - exact).abs().max().item(), torch.finfo(torch.float32).eps)
    assert floor < 1e-5, "verl computes something else"
    with act():
        found = subject(rewards, mask, ["a"] * 3, epsilon=epsilon)
    assert (found - exact).abs().max() <= 8 * floor


@pytest.mark.guards("rejected-token-still-rewarded")
def test_last_one_of_a_group_has_no_advantage(subject):
    mask = torch.tensor([[1, 1], [0, 0], [0, 0]])
    with act():
        assert subject(torch.tensor([1.0, 0.0, 0.0]), mask, ["a"] * 3).tolist() == [[0, 0]] * 3


@pytest.mark.guards("rejected-token-still-rewarded")
@pytest.mark.parametrize(("rows", "groups"), [(2, 3), (3, 2)])
def test_rejects_other_numbers_of_rows(subject, rows, groups):
    with act(), pytest.raises(ValueError, match=rf"\b3\b.*\b{rows}\b.*\b{groups}\b"):
        subject(torch.zeros(3), torch.ones(rows, 2), ["a"] * groups)
