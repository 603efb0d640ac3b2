"""The keys in the catalogue's remedies are keys of the installed trainers."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.named_keys import VERL_KEY, find_trl_fields

FAILURES = catalogue.load([catalogue.SHIPPED]).values()


def remedies_with(trainer):
    return [(one.id, one.remedies[trainer]) for one in FAILURES if trainer in one.remedies]


def folder_of(package):
    return Path(find_spec(package).submodule_search_locations[0])


def refused_by_hydra(overrides, name, *settings):
    """Return what one of verl's own configurations refuses."""
    import hydra

    refused = []
    with hydra.initialize_config_dir(str(folder_of("verl") / "trainer" / "config"), version_base=None):
        for override in overrides:
            try:
                hydra.compose(name, [*settings, override])
            except hydra.errors.ConfigCompositionException:
                refused.append(override)
    return refused


def fields_of(*files):
    """Return the fields of the dataclasses in files."""
    return {
        statement.target.id
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }


@pytest.mark.needs("verl-trainer")
def test_verl_takes_every_key_of_a_remedy():
    overrides = {
        key + (value or "=null"): failure
        for failure, text in remedies_with("verl")
        for key, value in VERL_KEY.findall(text)
        if key != "+data.n"  # which is named as wrong
    }
    assert len(overrides) >= 30
    refused = refused_by_hydra(overrides, "ppo_trainer")
    refused = refused_by_hydra(refused, "ppo_trainer", "model_engine=megatron")
    refused = refused_by_hydra(refused, "ppo_trainer", "model_engine=veomni")
    refused = refused_by_hydra(refused, "sft_trainer_engine")
    assert {one: overrides[one] for one in refused} == {}
    assert refused_by_hydra(["actor_rollout_ref.rollout.no_such_key=1"], "ppo_trainer")


@pytest.mark.needs("verl-trainer")
def test_remedies_with_verl_write_its_keys_in_full():
    """A leaf of verl's configuration that stands there alone can't be typed."""
    files = (folder_of("verl") / "trainer" / "config").rglob("*.yaml")
    leaves = {
        name for file in files for name in re.findall(r"^\s*([a-z]+(?:_[a-z]+)+):", file.read_text(), re.MULTILINE)
    }
    assert "gpu_memory_utilization" in leaves
    short = [
        (failure, name)
        for failure, text in remedies_with("verl")
        for name in re.findall(r"[a-z]+(?:_[a-z]+)+", VERL_KEY.sub("", text))
        if name in leaves
    ]
    assert short == []


@pytest.mark.needs("trl", "transformers")
def test_trl_takes_every_key_of_a_remedy():
    trl, transformers = folder_of("trl"), folder_of("transformers")
    known = fields_of(
        *(trl / "trainer").glob("*_config.py"), trl / "scripts" / "utils.py", transformers / "training_args.py"
    )
    assert {"vllm_mode", "lora_dropout", "report_to"} <= known
    named = {name: failure for failure, text in remedies_with("trl") for name in find_trl_fields(text)}
    assert len(named) >= 20
    assert {name: failure for name, failure in named.items() if name not in known} == {}
