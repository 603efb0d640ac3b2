import random
from contextlib import contextmanager

from mutants import broken, replaces
from pytest_rlregress.stack.lazy import np, torch


@broken(only="test_draws_go_on")
@contextmanager
def torch_alone():
    with torch.random.fork_rng(devices=[]):
        yield


@broken(only="block_that_fails")
@contextmanager
def where_nothing_fails():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


replaces("absent", "vllm.v1.worker.cpu_worker.set_random_seed", only="test_start")(lambda seed: None)
replaces("changed", "vllm.v1.worker.cpu_worker.set_random_seed", only="test_start")(
    lambda original, seed: original(seed + 1)
)
