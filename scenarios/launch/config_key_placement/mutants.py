"""Broken remedies of config-key-placement, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.launch import check_key_placement


@broken(only="test_every_wrong_place_is_named")
def finds_the_first(config):
    return check_key_placement(config)[:1]


@broken(only="test_what_works")
def everything_in_an_environment_too(config):
    [environment] = config["orchestrator"]["env"]
    return check_key_placement(environment.get("args", {}))


@mutant("absent", only="test_verl_has_no_such_key")
def verl_takes_any_key(monkeypatch):
    import hydra

    compose = hydra.compose
    monkeypatch.setattr(
        hydra, "compose", lambda name, overrides: compose(name, overrides=[f"+{one}" for one in overrides])
    )


@mutant("changed", only="test_verl_has_no_such_key")
def hydra_without_the_file(monkeypatch):
    import hydra

    compose = hydra.compose
    monkeypatch.setattr(hydra, "compose", lambda name, overrides: compose("no_trainer", overrides=overrides))
