from mutants import failing, mutant, replaces


@mutant("absent", only="test_reward_worker")
def monitor_off(monkeypatch):
    monkeypatch.setattr("pytest_rlregress.scenarios.cluster.ray_memory_kill.test_ray_memory_kill.MONITOR", {})


@mutant("regressed", only="test_below_the_limit")
def limit_cannot_be_moved(monkeypatch):
    from pytest_rlregress.scenarios.cluster.ray_memory_kill import test_ray_memory_kill as scenario

    monkeypatch.setattr(scenario, "SHARES", dict.fromkeys(scenario.SHARES, "0.01"))


replaces("regressed", "ray.exceptions.OutOfMemoryError.__str__", only="test_error_lists")(
    lambda self: "Task was killed due to the node running low on memory."
)
replaces("changed", "ray.get", only="test_reward_worker")(failing(TimeoutError("no score")))
