"""Broken remedies of undeclared-trainer-dependency, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.undeclared import undeclared_dependencies


@broken(only="default_trainer_is_said")
def only_what_is_written(config):
    return [advice for advice in undeclared_dependencies(config) if advice.key.partition(".")[0] in config]


@broken(only="every_run_needs")
def only_settings(config):
    return [advice for advice in undeclared_dependencies(config) if advice.key != "trainer"]


@mutant("absent", only="-swanlab]")
def swanlab_is_a_part_of_verl(monkeypatch):
    from verl.utils.tracking import Tracking

    monkeypatch.setattr(Tracking, "__init__", lambda *arguments: None)


@mutant("changed", only="-swanlab]")
def swanlab_wants_a_login(monkeypatch):
    from verl.utils.tracking import Tracking

    def begin(*arguments):
        raise PermissionError("no API key")

    monkeypatch.setattr(Tracking, "__init__", begin)
