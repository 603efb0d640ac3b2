from mutants import broken, fails, replaces
from pytest_rlregress.remedies.rewards import reward_of_policy


@broken(only="test_answer_of_the_policy")
def all_that_is_there(manager, data, pad_token_id):
    return manager(data)


@broken(only="test_reward_reads")
def where_the_shorter_response_ends(manager, data, pad_token_id):
    rewards = reward_of_policy(manager, data, pad_token_id)
    moved = rewards.clone().zero_()
    for row, mask in enumerate(data.batch["response_mask"]):
        moved[row, mask.sum() - 1] = rewards[row].sum()
    return moved


@replaces("absent", "verl.workers.reward_manager.NaiveRewardManager.__call__")
def reads_policy_alone(original, self, data):
    """verl's managers decode what the response mask keeps."""
    data = data[list(range(len(data)))]
    if "response_mask" in data.batch.keys():  # noqa: SIM118
        mask = data.batch["response_mask"]
        order = (1 - mask).argsort(dim=-1, stable=True)
        data.batch["responses"] = data.batch["responses"].gather(-1, order)
        data.batch["attention_mask"][:, -mask.shape[-1] :] = mask.gather(-1, order)
    return original(self, data)


replaces("changed", "verl.workers.reward_manager.naive.default_compute_score")(fails)
