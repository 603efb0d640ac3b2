"""Broken remedies of mask-length-drift, and stacks that differ."""

from __future__ import annotations

from types import SimpleNamespace

from mutants import broken, fails, mutant
from pytest_rlregress.remedies.masks import completion_mask


@broken(only="test_rollout_in_trl")
def longer_than_its_ids(*conversation_and_limits):
    whole = completion_mask(*conversation_and_limits)
    return SimpleNamespace(**{**vars(whole), "completion_mask": [*whole.completion_mask, 1]})


@broken(only="test_rollout_in_trl")
def all_of_it_trained(*conversation_and_limits):
    whole = completion_mask(*conversation_and_limits)
    return SimpleNamespace(**{**vars(whole), "completion_mask": [1] * len(whole.completion_ids)})


@mutant("absent", only="test_verl_data_set")
def header_as_it_is_rendered(monkeypatch):
    from verl.utils.dataset import multiturn_sft_dataset as module

    found = module.extract_system_prompt_and_generation

    def without_think(*args, **kwargs):
        system_prompt, generation_prompt = found(*args, **kwargs)
        return system_prompt, generation_prompt[:1]

    monkeypatch.setattr(module, "extract_system_prompt_and_generation", without_think)


@mutant("reproduced", only="test_trl_prompt_and_completion")
def prompt_as_long_as_by_itself(monkeypatch):
    """As in TRL up to 1.5."""
    monkeypatch.setattr("trl.trainer.sft_trainer.common_prefix_length", lambda prompt_ids, ids: len(prompt_ids))


@mutant("changed", only="test_ids_and_mask_made_apart")
def model_fails_otherwise(monkeypatch):
    from transformers import Qwen2ForCausalLM

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", fails)
