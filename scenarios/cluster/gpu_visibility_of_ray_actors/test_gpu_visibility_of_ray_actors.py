import copy
import os
from types import SimpleNamespace

import pytest

from pytest_rlregress.failures.silent import silent
from pytest_rlregress.stack.lazy import ray

pytestmark = [pytest.mark.isolated(group="two pretended GPUs"), pytest.mark.needs("ray-cluster")]
CARDS = "0,1"
NO_GPU = pytest.mark.parametrize("options", [{}, {"num_gpus": 0}], ids=["nothing-said", "num-gpus-0"])


class Looker:
    def seen(self, name):
        return os.environ.get(name)


@pytest.fixture(scope="session")
def node_with_cards(watch_log):
    """A Ray node that takes itself for one of two GPUs, in Ray's own default settings."""
    from pytest_rlregress.fixtures import ray_cluster

    kept = {name: value for name, value in ray_cluster.ENVIRONMENT.items() if "ACCEL_ENV_VAR" not in name}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CUDA_VISIBLE_DEVICES", CARDS)
        patched.delenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", raising=False)
        patched.setattr(ray_cluster, "ENVIRONMENT", kept)
        patched.setattr(ray_cluster.nvml, "discover", lambda: SimpleNamespace(gpus=CARDS.split(",")))
        with ray_cluster.start() as cluster:
            watch_log(cluster.log_dir)
            yield cluster


def seen_by_actor(options, *names):
    """What an actor with these options has in its environment."""
    actor = ray.remote(Looker).options(**{"num_cpus": 0, **options}).remote()
    try:
        return [ray.get(actor.seen.remote(name), timeout=60) for name in names or ["CUDA_VISIBLE_DEVICES"]]
    finally:
        ray.kill(actor)


@pytest.mark.reproduces("gpu-visibility-of-ray-actors")
@NO_GPU
def test_actor_without_a_gpu(node_with_cards, options):
    [cards] = seen_by_actor(options)
    if cards != "":
        silent(f"an actor that asked for no GPU sees {cards}")


@pytest.mark.guards("gpu-visibility-of-ray-actors")
@NO_GPU
def test_actor_without_a_gpu_sees_none(node_with_cards, subject, options):
    assert seen_by_actor(subject(options)) == [""]


@pytest.mark.guards("gpu-visibility-of-ray-actors")
def test_actor_with_a_gpu_sees_its_own(node_with_cards, subject):
    [cards] = seen_by_actor(subject({"num_gpus": 1}))
    assert cards in CARDS.split(",")


@pytest.mark.guards("gpu-visibility-of-ray-actors")
def test_other_variables_reach_the_actor(node_with_cards, subject):
    options = {"runtime_env": {"env_vars": {"TOKENIZERS_PARALLELISM": "false"}}}
    assert seen_by_actor(subject(options), "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM") == ["", "false"]


CHOSEN = {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": "1"}}}
TOLD = {"num_cpus": 2, "runtime_env": {"working_dir": ".", "env_vars": {"A": "1"}}}
HIDDEN = {"num_cpus": 2, "runtime_env": {"working_dir": ".", "env_vars": {"A": "1", "CUDA_VISIBLE_DEVICES": ""}}}
GIVEN = {
    "part-of-a-gpu": ({"num_gpus": 0.5, **TOLD}, {"num_gpus": 0.5, **TOLD}),
    "chosen-and-0": ({"num_gpus": 0, **CHOSEN}, {"num_gpus": 0, **CHOSEN}),
    "chosen": (CHOSEN, CHOSEN),
    "nothing-said": (TOLD, HIDDEN),
}


@pytest.mark.guards("gpu-visibility-of-ray-actors")
@pytest.mark.parametrize(("options", "wanted"), GIVEN.values(), ids=GIVEN)
def test_hides_gpus_in_a_copy_unless_some_were_asked_for(subject, options, wanted):
    before = copy.deepcopy(options)
    made = subject(options)
    assert made == wanted
    made["num_cpus"] = 7
    assert options == before
