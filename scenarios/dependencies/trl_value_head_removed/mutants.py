"""Broken remedies of trl-value-head-removed, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant


@broken(only="is_patched")
def nothing_is_hidden():
    return None


@broken(only="after-verl")
def hidden_where_it_is_defined_alone():
    from verl.utils import import_utils

    import_utils.is_trl_available = lambda: False


@mutant("absent")
def trl_with_the_class(monkeypatch):
    import trl

    monkeypatch.setattr(trl, "AutoModelForCausalLMWithValueHead", type("WithHead", (), {}), raising=False)


@mutant("changed")
def a_model_that_verl_does_not_know(monkeypatch):
    from verl.models.transformers import monkey_patch

    def apply_monkey_patch(model, **options):
        raise AttributeError("'Qwen2Config' object has no attribute 'text_config'")

    monkeypatch.setattr(monkey_patch, "apply_monkey_patch", apply_monkey_patch)
