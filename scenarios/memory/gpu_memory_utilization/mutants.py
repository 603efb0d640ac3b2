"""Broken remedies of gpu-memory-utilization, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.memory import engine_memory_share


@broken(only="test_any_trainer")
def share_of_what_is_free(total_bytes, reserved_bytes):
    engine_memory_share(total_bytes, reserved_bytes)
    return 0.5


@broken(only="test_documented_trainer")
def all_that_is_left(total_bytes, reserved_bytes):
    return (total_bytes - reserved_bytes) / total_bytes


@mutant("absent", only="test_default_beside_a_trainer")
def takes_what_is_free(monkeypatch):
    from vllm.v1.worker import utils

    def request_memory(found, cache_config):
        return min(found.free_memory, int(found.total_memory * cache_config.gpu_memory_utilization))

    monkeypatch.setattr(utils, "request_memory", request_memory)


@mutant("changed", only="test_default_beside_a_trainer")
def refuses_every_share(monkeypatch):
    from vllm import config

    def cache_config(**settings):
        raise ValueError(f"gpu_memory_utilization is gone: {settings}")

    monkeypatch.setattr(config, "CacheConfig", cache_config)
