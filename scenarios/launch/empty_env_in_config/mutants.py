"""Broken remedies of empty-env-in-config, and stacks that differ."""

from __future__ import annotations

import copy

from mutants import broken, mutant
from pytest_rlregress.remedies.launch import check_interpolations


@broken(only="one-empty")
def nothing_wrong(config, environ):
    return []


@broken(only="test_what_the_check_lets_through")
def a_default_will_do(config, environ):
    return check_interpolations(config, {name: value for name, value in environ.items() if value})


@mutant("absent")
def verl_takes_one_for_empty(monkeypatch):
    from verl.utils import config as verl_config

    validate = verl_config.validate_config

    def validate_numbers(config, **keywords):
        config = copy.deepcopy(config)
        for key in ("n_gpus_per_node", "nnodes"):
            config.trainer[key] = int(config.trainer[key] or 1)
        return validate(config, **keywords)

    monkeypatch.setattr(verl_config, "validate_config", validate_numbers)


@mutant("changed")
def verl_names_the_key(monkeypatch):
    from verl.utils import config as verl_config

    def validate(config, **keywords):
        raise ValueError(f"trainer.nnodes must be a number, not {config.trainer.nnodes!r}")

    monkeypatch.setattr(verl_config, "validate_config", validate)
