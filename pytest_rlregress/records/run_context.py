"""Describe what a run runs on: command, stack, hardware, checkout."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pytest_rlregress.hardware.processor import cpu
from pytest_rlregress.records.record_types import (
    FORMAT,
    CheckoutState,
    InstalledStack,
    Processor,
    PytestCall,
    RecordedDevice,
    RecordedHardware,
    RunExtra,
)
from pytest_rlregress.settings import OPTIONS, Settings
from pytest_rlregress.stack import COMPONENTS, Stack, locks
from pytest_rlregress.util.git import GitError, git

if TYPE_CHECKING:
    from pytest_rlregress.session import Session

# Where a component says which build it is, for releases whose installed version does not: torch's from PyPI.
_SAID_IN = {"torch": "version.py", "vllm": "_version.py"}

#: Settings that choose tests or say where records go: profile and arguments tell of them.
_TOLD_ELSEWHERE = ("hw", "long", "quick", "record_dir", "update_goldens")


def found(session: Session, config: pytest.Config) -> RunExtra:
    """Describe the run's command, stack, hardware and checkout."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    chosen = {"--rl-long": session.settings.long, "--rl-quick": session.quick}  # by the environment or ini, too
    arguments += [flag for flag, given in chosen.items() if given and flag not in arguments]
    call = PytestCall(
        arguments=arguments,
        host=platform.node(),
        workers=config.getoption("numprocesses", None) or None,
        settings=_settings(session.settings, config),
    )
    return RunExtra(
        format=FORMAT,
        stack=_stack(session.stack),
        run=call,
        hardware=_hardware(session),
        git=_git(config.rootpath),
        interrupted=True,  # until it is complete
        state="running",
    )


def _settings(settings: Settings, config: pytest.Config) -> dict[str, str]:
    """Return the ini file, what the command line put in its place, and our settings that are not the default."""
    found = {"ini file": os.path.relpath(config.inipath, config.rootpath) if config.inipath else "none"}
    for override in config.getoption("override_ini", None) or ():
        name, _, found[name] = override.partition("=")
    for option in OPTIONS:
        value = getattr(settings, option.name)
        if option.name not in _TOLD_ELSEWHERE and value != option.default:
            found[option.key] = _text(value, config.rootpath)
    return found


def _text(value: object, root: Path) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {one}" for name, one in sorted(value.items()))
    if isinstance(value, tuple):
        return ", ".join(_text(one, root) for one in value)
    return os.path.relpath(value, root) if isinstance(value, Path) else str(value)


def builds(stack: Stack) -> dict[str, str | None]:
    """Which build torch and vllm are, "cpu" or "cu130", where they are installed; None where that is not said."""
    return {name: stack.build(name) or _said(name, file) for name, file in _SAID_IN.items() if name in stack.versions}


def _said(module: str, file: str) -> str | None:
    """The local part of the version that a package's own file gives; the package is not imported."""
    spec = importlib.util.find_spec(module)
    try:
        text = Path(spec.origin if spec and spec.origin else "").with_name(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    version = re.search(r"^__version__\b[^'\"\n]*['\"][^'\"+]+\+([^'\"]+)['\"]", text, re.MULTILINE)
    return version[1] if version else None


def _stack(stack: Stack) -> InstalledStack:
    return InstalledStack(
        requirements=locks.installed().text.splitlines(),
        python=platform.python_version(),
        platform=platform.platform(),
        versions={name: stack.versions[name] for name in COMPONENTS if name in stack.versions},
        builds=builds(stack),
    )


def _hardware(session: Session) -> RecordedHardware:
    machine, memory = session.machine, psutil.virtual_memory().total
    devices = [
        RecordedDevice(gpu.name, gpu.memory_bytes, gpu.uuid, gpu.mig, ".".join(map(str, gpu.capability)))
        for gpu in machine.gpus
    ]
    return RecordedHardware(session.profile_id, machine.driver, Processor(**cpu()), memory, devices)


def _git(folder: Path) -> CheckoutState | None:
    try:
        commit = git(folder, "rev-parse", "HEAD", timeout=60)
        return CheckoutState(commit, dirty=bool(git(folder, "status", "--porcelain", "-uno", timeout=60)))
    except (OSError, GitError):
        return None
