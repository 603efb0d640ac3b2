"""The keys that remedies name, and which of them no test of the folder names."""

from __future__ import annotations

import re

import pytest

from pytest_rlregress.commands.list.failure_page import page, shown, silent_texts
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.catalogue import SHIPPED
from pytest_rlregress.failures.named_keys import find_keys, find_untested_keys

FAILURES = list(catalogue.load([SHIPPED]).values())
REMEDIES = {
    "verl": "algorithm.adv_estimator=grpo with +actor_rollout_ref.rollout.n=8, see verl.trainer.main_ppo.",
    "trl": 'beta=0, vllm_mode="colocate", --num_generations is said elsewhere; call trainer.load_model(one_path).',
}


def test_finds_the_keys_of_each_trainer():
    assert find_keys(REMEDIES) == [
        "algorithm.adv_estimator", "+actor_rollout_ref.rollout.n", "beta", "vllm_mode",
    ]  # fmt: skip


def test_a_key_is_tested_if_a_test_of_the_folder_names_it(tmp_path):
    (tmp_path / "test_it.py").write_text("run(adv_estimator='grpo')\nn = 8\n")
    (tmp_path / "mutants.py").write_text("vllm_mode = beta = 0\n")
    assert find_untested_keys(REMEDIES, tmp_path) == ["+actor_rollout_ref.rollout.n", "beta", "vllm_mode"]


def test_a_page_says_which_keys_no_test_shows():
    failure = next(one for one in FAILURES if one.id == "rope-buffer-cast")
    assert "Not shown by a test: `actor_rollout_ref.actor.fsdp_config.model_dtype`, " in page(failure)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: one.id)
def test_what_is_seen_is_in_words(failure):
    """A hole alone, or the name of an exception, identifies nothing to a reader."""
    texts = [*silent_texts(failure.folder), *map(shown, failure.signatures)]
    assert [text for text in texts if re.fullmatch(r"[… ]*|\w*(Error|Exception)", text)] == []


def test_a_remedy_leads_with_the_installed_trainer():
    failure = next(one for one in FAILURES if one.id == "rope-buffer-cast")
    verl, trl, any_trainer = (failure.remedies[name] for name in ("verl", "trl", "any"))
    assert failure.remedy_led_by(["trl"]) == f"TRL: {trl} {any_trainer} verl: {verl}"
    assert failure.remedy_led_by([]) == f"{any_trainer} verl: {verl} TRL: {trl}"
