"""Broken remedies of expandable-segments, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@broken(only="test_cleared_environment")
def only_the_old_name(environ):
    return {name: value for name, value in environ.items() if name != NAMES[0]}


@broken(only="test_cleared_environment")
def both_unset(environ):
    return {name: value for name, value in environ.items() if name not in NAMES}


@mutant("absent", only="test_refused")
def not_looked_at(monkeypatch):
    from vllm.config import VllmConfig

    monkeypatch.setattr(VllmConfig, "_verify_kv_transfer_compat", lambda config: None)


@mutant("changed")
def connector_is_gone(monkeypatch):
    from vllm.config import VllmConfig

    def verify(config):
        raise ValueError("there is no KV connector of that name")

    monkeypatch.setattr(VllmConfig, "_verify_kv_transfer_compat", verify)
