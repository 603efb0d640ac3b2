"""Broken remedies of flash-attention-missing, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant


@broken(only="stub")
def the_name_is_enough(wanted):
    from transformers.utils import import_utils

    return wanted if import_utils.is_flash_attn_2_available() else "sdpa"


@broken(only="test_what_can_be_used")
def sdpa_for_all(wanted):
    return "sdpa"


@mutant("absent")
def sdpa_takes_its_place(monkeypatch):
    from transformers import PreTrainedModel

    monkeypatch.setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", lambda self, *args, **kwargs: "sdpa")


@mutant("changed")
def loading_fails_otherwise(monkeypatch):
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fails)
