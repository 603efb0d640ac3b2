"""``rlregress preflight``: keys and values where no trainer is installed, and what counts as a slip."""

from __future__ import annotations

import pytest
from commands import command_of
from installed import TESTS

from pytest_rlregress.commands.preflight import names

CONFIGS = TESTS / "configs"
GSPO = CONFIGS / "verl-h200-gspo-3b.yaml"
ROLLOUT = "actor_rollout_ref.rollout"


def test_without_verl_compares_with_known_names_and_says_so(preflight_names):
    _, found, doubts = preflight_names(
        GSPO, f"{ROLLOUT}.gpu_mem_utilization=0.6", "algorithm.adv_estimator=newer", "data.zz=1"
    )
    assert [key for _, key, _, _ in found] == [f"{ROLLOUT}.gpu_mem_utilization"]
    assert ["verl is not installed here" in doubt for doubt in doubts] == [True, False]
    assert "newer" in doubts[1]


@pytest.mark.parametrize(
    "file", [*sorted(CONFIGS.glob("*.*ml")), CONFIGS / "verl-rtx-5070-ti-0.5b.sh"], ids=lambda file: file.name
)
def test_sound_configuration_is_clean_without_a_trainer(preflight_names, file):
    assert preflight_names(*(["--", *command_of(file)] if file.suffix == ".sh" else [file]))[1] == []


def test_compares_prime_rl_with_known_names(preflight_names):
    _, ((_, key, why, write),), (doubt,) = preflight_names(
        CONFIGS / "prime-rl-h100-7b-lora.toml", "inference.gpu_mem_utilization=0.4"
    )
    assert (key, write) == ("inference.gpu_mem_utilization", "inference.gpu_memory_utilization=0.4")
    assert "preflight's own list for prime-rl" in why
    assert "compared with" in doubt


@pytest.mark.parametrize(
    ("name", "known", "misspelt"),
    [
        ("gpu_mem_utilization", "gpu_memory_utilization", True),
        ("gpu_mem_util", "gpu_memory_utilization", True),
        ("maxpromptlength", "max_prompt_length", True),
        ("rolout", "rollout", True),
        ("ppo_mini_batch_size", "ppo_micro_batch_size", False),
        ("max_prompt_length", "max_completion_length", False),
        ("lora_r_b", "lora_r", False),
        ("val_files", "train_files", False),
        ("top_p", "top_k", False),
    ],
)
def test_recognises_misspellings(name, known, misspelt):
    assert names._is_misspelling(name, known) is misspelt
