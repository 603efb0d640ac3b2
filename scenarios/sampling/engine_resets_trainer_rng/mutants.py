"""Broken remedies of engine-resets-trainer-rng, and stacks that differ."""

from __future__ import annotations

import random
from contextlib import contextmanager

from mutants import broken, mutant


@broken(only="test_whatever")
@contextmanager
def torch_alone():
    import torch

    with torch.random.fork_rng(devices=[]):
        yield


@broken(only="test_block_that_fails")
@contextmanager
def where_nothing_fails():
    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@mutant("absent", only="test_start")
def worker_seeds_nothing(monkeypatch):
    monkeypatch.setattr("vllm.v1.worker.cpu_worker.set_random_seed", lambda seed: None)


@mutant("changed", only="test_start")
def worker_seeds_otherwise(monkeypatch):
    from vllm.v1.worker import cpu_worker

    real = cpu_worker.set_random_seed
    monkeypatch.setattr(cpu_worker, "set_random_seed", lambda seed: real(seed + 1))
