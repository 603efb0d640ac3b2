import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.stack.lazy import np, torch

REWARDS = [1.0, 1.0, 0.0, 1.0]


def verl_advantages(rewards, groups):
    """Of trajectories of one token."""
    rewards, index = torch.tensor(rewards)[:, None], np.array(groups, dtype=object)
    return trainers.core_algos().compute_grpo_outcome_advantage(rewards, torch.ones_like(rewards), index)[0][:, 0]


def group_ids(trajectories):
    """As an agent's loop gives them that does not know of its prompt's other trajectories."""
    import uuid

    return [str(uuid.uuid4()) for _ in range(trajectories)]


@pytest.mark.reproduces("singleton-group-raw-reward")
def test_id_of_each_trajectory():
    """Four trajectories of one prompt."""
    with act():
        advantages = [round(one, 3) for one in verl_advantages(REWARDS, group_ids(4)).tolist()]
    if not (min(advantages) < 0 or not any(advantages)):
        silent(f"rewards of {REWARDS} are advantages of {advantages}")


@pytest.mark.guards("singleton-group-raw-reward")
@pytest.mark.parametrize("ids", ["uuid", "numbers", "array"])
def test_groups_of_the_size_asked_for(subject, ids):
    """Rows in any order; each prompt's advantages are around 0."""
    groups = {"uuid": ["a", "b", "b", "a", "b", "a"], "numbers": [7, 3, 3, 7, 3, 7]}.get(ids)
    given = np.array(list("abbaba"), dtype=object) if groups is None else list(groups)
    with act():
        found = subject(given, 3)
    assert (type(found), found.dtype, found.shape) == (np.ndarray, object, (6,))
    assert found.tolist() == list(given)
    rewards = [1.0, 0.5, 0.25, 0.0, 0.0, 0.0]
    exact = verl_advantages(rewards, found).double()
    # The same rewards in another order are the rounding there is.
    floor = (verl_advantages(rewards[::-1], found[::-1].copy()).flip(0).double() - exact).abs().max().item()
    step = torch.finfo(torch.float32).eps
    for group in set(found.tolist()):
        members = [one == group for one in found]
        assert abs(exact[members].sum().item()) <= 8 * max(floor, step)
        assert exact[members].abs().max() > 0.1
