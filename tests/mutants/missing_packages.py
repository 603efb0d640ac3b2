"""Mutants of scenarios/dependencies: what a setting needs to be installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace

from mutants import broken, mutant
from pytest_rlregress.remedies.dependencies import missing_symbol


def by_distribution(setting):
    """Ask the metadata for the name, as a partial install also has it."""
    try:
        metadata.version(setting)
    except metadata.PackageNotFoundError:
        return missing_symbol(setting)
    return None


def by_module(setting):
    """Import the top-level package only."""
    try:
        importlib.import_module(setting)
    except ImportError:
        return missing_symbol(setting)
    return None


def by_look(setting):
    """Look for the symbol's module without importing it."""
    return None if importlib.util.find_spec(setting) else missing_symbol(setting)


def without_advice(setting):
    said = missing_symbol(setting)
    return said and said.partition("): ")[0] + ")"


for probe in (by_distribution, by_module, by_look):
    broken("mbridge-missing", only="without-the-symbol")(probe)
broken("mbridge-missing", only="alone_is_missing")(without_advice)


@broken("mbridge-missing", only="whole")
def always_missing(setting):
    return f"{setting} cannot be imported: change the setting"


@broken("mbridge-missing", only="megatron_is_named")
def blamed_for_megatron(setting):
    said = missing_symbol(setting)
    return said and said.replace("install megatron-core", f"install {setting}")


@broken("mbridge-missing", only="without-one-of-them")
def only_its_first_symbol(setting):
    return None if hasattr(importlib.import_module("mbridge"), "AutoBridge") else missing_symbol(setting)


@broken("mbridge-missing", only="engine_is_configured")
def megatron_bridge_wanted_too(setting):
    return missing_symbol(setting) or missing_symbol("megatron-bridge")


@mutant("mbridge-missing", "absent", only="without_megatron_core")
def verl_has_an_engine_of_its_own(monkeypatch):
    from verl.workers.engine import EngineRegistry

    monkeypatch.setattr(EngineRegistry, "get_engine_cls", lambda model_type, backend: object)


@mutant("mbridge-missing", "changed", only="without_megatron_core")
def the_engine_is_for_another_device(monkeypatch):
    from verl.workers.engine import EngineRegistry

    def refuse(model_type, backend):
        raise ValueError(f"No engine registered for device='cpu', model_type={model_type!r}, backend={backend!r}")

    monkeypatch.setattr(EngineRegistry, "get_engine_cls", refuse)


@mutant("mbridge-missing", "absent", only="without_mbridge")
def verl_brings_its_own(monkeypatch):
    class AutoBridge:
        config = SimpleNamespace(hidden_size=32)

        @classmethod
        def from_config(cls, model, dtype):
            return cls()

        def set_extra_args(self, **settings): ...

    module = ModuleType("verl.models.mcore.mbridge")
    module.AutoBridge = AutoBridge
    monkeypatch.setitem(sys.modules, module.__name__, module)


@mutant("mbridge-missing", "changed", only="without_mbridge")
def mbridge_for_another_torch(monkeypatch):
    class Broken(ModuleType):
        def __getattr__(self, name):
            raise OSError("_C.abi3.so: undefined symbol")

    monkeypatch.setitem(sys.modules, "verl.models.mcore.mbridge", Broken("verl.models.mcore.mbridge"))
