"""Broken remedies of tool-output-in-reward, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant
from pytest_rlregress.remedies.rewards import reward_of_policy


@broken(only="test_answer_of_the_policy")
def all_that_is_there(manager, data, pad_token_id):
    return manager(data)


@broken(only="test_any_responses")
def where_the_shorter_response_ends(manager, data, pad_token_id):
    rewards = reward_of_policy(manager, data, pad_token_id)
    moved = rewards.clone().zero_()
    for row, mask in enumerate(data.batch["response_mask"]):
        moved[row, mask.sum() - 1] = rewards[row].sum()
    return moved


@mutant("absent")
def reads_policy_alone(monkeypatch):
    """verl's managers decode what the response mask keeps."""
    from verl.experimental.reward_loop.reward_manager import naive
    from verl.workers.reward_manager import NaiveRewardManager

    call, run = NaiveRewardManager.__call__, naive.NaiveRewardManager.run_single

    def without_tools(data):
        data = data[list(range(len(data)))]
        if "response_mask" in data.batch.keys():  # noqa: SIM118
            mask = data.batch["response_mask"]
            order = (1 - mask).argsort(dim=-1, stable=True)
            data.batch["responses"] = data.batch["responses"].gather(-1, order)
            data.batch["attention_mask"][:, -mask.shape[-1] :] = mask.gather(-1, order)
        return data

    monkeypatch.setattr(NaiveRewardManager, "__call__", lambda self, data: call(self, without_tools(data)))
    monkeypatch.setattr(naive.NaiveRewardManager, "run_single", lambda self, data: run(self, without_tools(data)))


@mutant("changed")
def scores_fail(monkeypatch):
    from verl.workers.reward_manager import naive

    monkeypatch.setattr(naive, "default_compute_score", fails)
