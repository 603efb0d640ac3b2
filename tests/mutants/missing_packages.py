"""Mutants of scenarios/dependencies: what a setting needs to be installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from importlib import metadata
from pathlib import Path
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
    module = {"apex": "fused_weight_gradient_mlp_cuda"}.get(setting, setting)
    return None if importlib.util.find_spec(module) else missing_symbol(setting)


def without_advice(setting):
    said = missing_symbol(setting)
    return said and said.partition("): ")[0] + ")"


for failure in ("megatron-core-missing", "mbridge-missing", "apex-missing", "vllm-missing"):
    for probe in (by_distribution, by_module, by_look):
        broken(failure, only="without-the-symbol")(probe)
    said = "alone_is_missing" if failure == "mbridge-missing" else "nothing_installed"
    broken(failure, only=said)(without_advice)


@broken("apex-missing", only="whole_install")
@broken("mbridge-missing", only="whole_install")
@broken("megatron-core-missing", only="whole_install")
def always_missing(setting):
    return f"{setting} cannot be imported: change the setting"


@broken("mbridge-missing", only="not_blamed")
def blamed_for_megatron(setting):
    said = missing_symbol(setting)
    return said and said.replace("install megatron-core", f"install {setting}")


@broken("mbridge-missing", only="without-one-of-them")
def only_its_first_symbol(setting):
    return None if hasattr(importlib.import_module("mbridge"), "AutoBridge") else missing_symbol(setting)


@broken("mbridge-missing", only="engine_is_configured")
def megatron_bridge_wanted_too(setting):
    return missing_symbol(setting) or missing_symbol("megatron-bridge")


@broken("vllm-missing", only="whole_install")
def as_verl_asks(setting):
    return None if "vllm" in metadata.packages_distributions()["vllm"] else "vllm.LLM: set rollout.name"


@mutant("megatron-core-missing", "absent", only="by_its_strategy")
def verl_has_an_engine_of_its_own(monkeypatch):
    from verl.workers.engine import EngineRegistry

    monkeypatch.setattr(EngineRegistry, "get_engine_cls", lambda model_type, backend: object)


@mutant("megatron-core-missing", "changed", only="by_its_strategy")
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


@mutant("apex-missing", "absent", only="the_symbol")
def apex_with_its_extension(monkeypatch):
    folder = Path(tempfile.mkdtemp())
    source = "def wgrad_gemm_accum_fp32(rows, grad, main_grad): main_grad.add_(grad.t() @ rows)\n"
    (folder / "fused_weight_gradient_mlp_cuda.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "fused_weight_gradient_mlp_cuda", raising=False)


@mutant("apex-missing", "changed", only="the_symbol")
def an_extension_of_other_symbols(monkeypatch):
    monkeypatch.setitem(sys.modules, "fused_weight_gradient_mlp_cuda", ModuleType("fused_weight_gradient_mlp_cuda"))


@mutant("vllm-missing", "absent", only="another_name")
def verl_asks_the_module(monkeypatch):
    version = metadata.version

    def of_the_module(name):
        return importlib.import_module(name).__version__ if name == "vllm" else version(name)

    monkeypatch.setattr(metadata, "version", of_the_module)


@mutant("vllm-missing", "changed", only="without_vllm")
def verl_knows_no_rollout(monkeypatch):
    from verl.workers.rollout import base

    monkeypatch.setattr(base, "_ROLLOUT_REGISTRY", {})
