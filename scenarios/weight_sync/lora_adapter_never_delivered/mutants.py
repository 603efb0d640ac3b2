"""Broken remedies of lora-adapter-never-delivered, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.weight_sync import merged_weights


@broken(only="test_engine_has_the_adapter[base_only")
def base_only(model):
    from verl.utils.fsdp_utils import collect_lora_params

    yield from collect_lora_params(model, layered_summon=False, base_sync_done=False).items()


@broken(only="test_engine_has_the_adapter[without_scaling-lora]")
def without_scaling(model):
    scaled = [module.scaling for module in model.modules() if hasattr(module, "lora_A")]
    for scaling in scaled:
        scaling["default"] /= 2
    yield from merged_weights(model)
    for scaling in scaled:
        scaling["default"] *= 2


@mutant("absent")
def trainer_sends_the_merged_weights(monkeypatch):
    from verl.utils import fsdp_utils

    monkeypatch.setattr(fsdp_utils, "collect_lora_params", lambda policy, **options: dict(merged_weights(policy)))


@mutant("changed")
def trainer_fails_otherwise(monkeypatch):
    from verl.utils import fsdp_utils

    monkeypatch.setattr(fsdp_utils, "collect_lora_params", failing(KeyError("base_model.model")))
