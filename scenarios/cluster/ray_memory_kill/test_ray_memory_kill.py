"""Ray's memory monitor, with a limit below and above what the machine has in use, and verl's reward workers."""

import contextlib
import os
import re
from pathlib import Path

import psutil
import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures.verl_on_cpu import folder_of
from pytest_rlregress.stack.lazy import np, ray, torch

pytestmark = [
    pytest.mark.isolated(group="memory limits", timeout=600),
    pytest.mark.needs("ray-cluster", "verl-trainer"),
]

#: The share of the machine's memory from which on Ray ends workers: less than is in use, or more.
SHARES = {"below-use": "0.01", "above-use": "0.99"}
#: The fixture of Ray turns the monitor off.
MONITOR = {"RAY_memory_monitor_refresh_ms": "250"}
ROWS = 2


@pytest.fixture(scope="module")
def limited(request, watch_log):
    """A Ray cluster that looks after the machine's memory, with one of ``SHARES`` as its limit."""
    from pytest_rlregress.fixtures import ray_cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ray_cluster, "ENVIRONMENT", {**ray_cluster.ENVIRONMENT, **MONITOR})
        patched.setenv("RAY_memory_usage_threshold", SHARES[request.param])
        with ray_cluster.start() as cluster:
            watch_log(cluster.log_dir)
            yield cluster


@pytest.fixture
def score(tiny_qwen):
    """Return a function that scores two answers by verl's reward loop: the pid that each was scored by."""
    from hydra import compose, initialize_config_module
    from verl import DataProto
    from verl.experimental.reward_loop.reward_loop import RewardLoopManager

    has_group = (folder_of("verl") / "trainer" / "config" / "reward").is_dir()  # verl 0.7.0 has not
    settings = [
        f"{'reward' if has_group else 'reward_model'}.num_workers=1",
        f"{'reward.' if has_group else ''}custom_reward_function.path={Path(__file__).with_name('judge.py')}",
        f"actor_rollout_ref.model.path={tiny_qwen.directory}",
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=settings)
    batch = DataProto.from_dict(
        {
            "prompts": torch.ones(ROWS, 2, dtype=torch.long),
            "responses": torch.ones(ROWS, 3, dtype=torch.long),
            "attention_mask": torch.ones(ROWS, 5, dtype=torch.long),
        },
        non_tensors={
            "data_source": np.array(["sums"] * ROWS, dtype=object),
            "reward_model": np.array([{"ground_truth": "18"}] * ROWS, dtype=object),
        },
    )

    def run():
        manager = RewardLoopManager(config)
        try:
            return manager.compute_rm_score(batch).batch["rm_scores"].sum(dim=-1).int().tolist()
        finally:
            for worker in manager.reward_loop_workers:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.kill(worker)

    return run


@pytest.mark.reproduces("ray-memory-kill")
@pytest.mark.parametrize("limited", ["below-use"], indirect=True)
def test_reward_worker_of_verl(limited, score):
    with act():
        score()


def read_error(score):
    """Return what Ray says of a worker that it ended, or None."""
    try:
        score()
    except ray.exceptions.OutOfMemoryError as error:
        return str(error)


@pytest.mark.guards("ray-memory-kill")
@pytest.mark.parametrize("limited", ["below-use"], indirect=True)
def test_error_lists_who_uses_the_memory(limited, score):
    """The worker that was ended need not be the one that grew: here this process, the driver, is larger."""
    with act():
        said = read_error(score)
    if said is None:
        return
    users = {int(pid): float(share) for pid, share in re.findall(r"(?:^|, )(\d+)\t([\d.]+)\t", said, re.MULTILINE)}
    smallest = min(users.values(), default=0.0)
    own = psutil.Process().memory_full_info().uss / 1e9
    assert len(users) > 1, said
    assert os.getpid() in users or own < smallest + 0.1, f"this process has {own:.2f} GB and isn't listed: {users}"


@pytest.mark.guards("ray-memory-kill")
@pytest.mark.parametrize("limited", ["above-use"], indirect=True)
def test_below_the_limit_it_lives(limited, score):
    with act():
        pids = score()
    assert len(pids) == ROWS
    assert os.getpid() not in pids
