"""Describe what a run runs on: command, stack, hardware, checkout."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_rlregress.hardware.processor import cpu
from pytest_rlregress.harness.settings import OPTIONS, Settings
from pytest_rlregress.records.record_types import (
    FORMAT,
    LONG,
    QUICK,
    CheckoutState,
    InstalledStack,
    Processor,
    PytestCall,
    RecordedDevice,
    RecordedHardware,
    RunExtra,
)
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.util.git import GitError, git

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session

#: Settings that choose tests or say where records go: profile and arguments tell of them.
_TOLD_ELSEWHERE = ("hw", "long", "quick", "failure", "component", "record_dir", "update_goldens")


def describe_run(session: Session, config: pytest.Config) -> RunExtra:
    """Describe the run's command, stack, hardware and checkout."""
    machine, versions = session.machine, session.stack.versions
    stack = InstalledStack(
        requirements=locks.installed().text.splitlines(),
        python=platform.python_version(),
        versions={name: versions[name] for name in COMPONENTS if name in versions},
    )
    devices = [
        RecordedDevice(gpu.name, gpu.memory_bytes, gpu.mig, ".".join(map(str, gpu.capability))) for gpu in machine.gpus
    ]
    hardware = RecordedHardware(session.profile_id, machine.driver, Processor(**cpu()), devices)
    call = describe_call(session, config)
    return RunExtra(FORMAT, stack, call, hardware, git=_describe_checkout(config.rootpath), state="running")


def describe_call(session: Session, config: pytest.Config) -> PytestCall:
    """Describe how pytest was called, and what chose the tests, wherever it was asked for."""
    asked = {LONG: session.settings.long, QUICK: session.quick}
    asked |= {flag: config.getoption(flag, False) for flag in ("--lf", "--sw")}
    chosen = [flag for flag, given in asked.items() if given]
    chosen += [f"--rl-failure {name}" for name in session.settings.failure]
    chosen += [f"--rl-component {name}" for name in session.settings.component]
    for flag in ("-k", "-m", "--deselect", "--ignore", "--ignore-glob"):
        values = config.getoption(flag, None) or ()
        chosen += [f"{flag} {value}" for value in ([values] if isinstance(values, str) else values)]
    if config.args_source == pytest.Config.ArgsSource.ARGS:
        chosen += config.args
    arguments = [str(argument) for argument in config.invocation_params.args]
    return PytestCall(arguments, chosen, _describe_settings(session.settings, config))


def _describe_settings(settings: Settings, config: pytest.Config) -> dict[str, str]:
    """Return the ini file, what the command line put in its place, and our settings that are not the default."""
    found = {"ini file": os.path.relpath(config.inipath, config.rootpath) if config.inipath else "none"}
    for override in config.getoption("override_ini", None) or ():
        name, _, found[name] = override.partition("=")
    for option in OPTIONS:
        value = getattr(settings, option.name)
        if option.name not in _TOLD_ELSEWHERE and value != option.default:
            found[option.key] = _as_text(value, config.rootpath)
    return found


def _as_text(value: object, root: Path) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {one}" for name, one in sorted(value.items()))
    if isinstance(value, tuple):
        return ", ".join(_as_text(one, root) for one in value)
    return os.path.relpath(value, root) if isinstance(value, Path) else str(value)


def _describe_checkout(folder: Path) -> CheckoutState | None:
    try:
        commit = git(folder, "rev-parse", "HEAD", timeout=60)
        return CheckoutState(commit, dirty=bool(git(folder, "status", "--porcelain", "-uno", timeout=60)))
    except (OSError, GitError):
        return None
