from mutants import failing, replaces
from pytest_rlregress.stack.lazy import ray, torch

SCORE = "verl.experimental.reward_loop.reward_loop.RewardLoopManager.compute_rm_score"
WORDS = "Task was killed due to the node running low on memory."


@replaces("absent", SCORE, only="test_reward_worker")
def scored_without_a_worker(self, batch):
    """A trainer that scores in its own process, which Ray's monitor leaves alone."""
    from verl import DataProto

    return DataProto.from_dict({"rm_scores": torch.zeros(len(batch), 3)})


@replaces("regressed", SCORE, only="test_below_the_limit")
def limit_cannot_be_moved(self, batch):
    raise ray.exceptions.OutOfMemoryError(WORDS)


replaces("regressed", "ray.exceptions.OutOfMemoryError.__str__", only="test_error_lists")(lambda self: WORDS)
replaces("changed", "ray.get", only="test_reward_worker")(failing(TimeoutError("no score")))
