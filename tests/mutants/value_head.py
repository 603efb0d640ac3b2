"""Mutants of scenarios/dependencies: verl and a TRL without the class that it imports."""

from __future__ import annotations

import sys
from types import ModuleType

from mutants import broken, mutant
from pytest_rlregress.remedies.dependencies import hide_trl_from_verl

FAILURE = "trl-value-head-removed"


@broken(FAILURE, only="is_patched")
def nothing_is_hidden():
    return None


@broken(FAILURE, only="after-verl")
def hidden_where_it_is_defined_alone():
    from verl.utils import import_utils

    import_utils.is_trl_available = lambda: False


@broken(FAILURE, only="said_and_stays")
def hidden_from_everyone():
    said = hide_trl_from_verl()
    if said:
        for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
            sys.modules[name] = None
    return said


@broken(FAILURE, only="said_and_stays")
def versions_not_said():
    return hide_trl_from_verl() and "AutoModelForCausalLMWithValueHead is missing"


@broken(FAILURE, only="left_to_verl")
def always_hidden():
    from verl.utils import import_utils

    import_utils.is_trl_available = lambda: False
    return hide_trl_from_verl()


@broken(FAILURE, only="left_to_verl")
def only_where_the_class_first_was():
    """The class in trl.experimental.ppo is not seen."""
    import trl

    if hasattr(trl, "AutoModelForCausalLMWithValueHead"):
        return None
    trl.experimental = sys.modules["trl.experimental"] = ModuleType("trl.experimental")
    return hide_trl_from_verl()


@broken(FAILURE, only="nothing_is_to_be_done")
def asks_an_absent_trl():
    import trl

    return f"trl {trl.__version__}"


@mutant(FAILURE, "absent")
def trl_with_the_class(monkeypatch):
    import trl

    monkeypatch.setattr(trl, "AutoModelForCausalLMWithValueHead", type("WithHead", (), {}), raising=False)


@mutant(FAILURE, "changed")
def a_model_that_verl_does_not_know(monkeypatch):
    from verl.models.transformers import monkey_patch

    def apply_monkey_patch(model, **options):
        raise AttributeError("'Qwen2Config' object has no attribute 'text_config'")

    monkeypatch.setattr(monkey_patch, "apply_monkey_patch", apply_monkey_patch)
