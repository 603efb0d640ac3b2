"""Broken remedies of mbridge-missing, and stacks that differ."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

from mutants import broken, mutant
from pytest_rlregress.remedies.dependencies import missing_symbol


@broken(only="without-the-symbol")
def by_distribution(setting):
    """Ask the metadata for the name, as a partial install also has it."""
    try:
        metadata.version(setting)
    except metadata.PackageNotFoundError:
        return missing_symbol(setting)
    return None


@broken(only="alone_is_missing")
def without_advice(setting):
    said = missing_symbol(setting)
    return said and said.partition("): ")[0] + ")"


@mutant("absent", only="without_megatron_core")
def verl_has_an_engine_of_its_own(monkeypatch):
    from verl.workers.engine import EngineRegistry

    find = EngineRegistry.get_engine_cls

    def found(model_type, backend):
        with suppress(Exception):
            return find(model_type, backend)
        return object

    monkeypatch.setattr(EngineRegistry, "get_engine_cls", found)


@mutant("changed", only="without_megatron_core")
def the_engine_is_for_another_device(monkeypatch):
    from verl.workers.engine import EngineRegistry

    def refuse(model_type, backend):
        raise ValueError(f"No engine registered for device='cpu', model_type={model_type!r}, backend={backend!r}")

    monkeypatch.setattr(EngineRegistry, "get_engine_cls", refuse)
