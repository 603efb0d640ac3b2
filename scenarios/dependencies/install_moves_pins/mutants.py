"""Broken remedies of install-moves-pins, and stacks that differ."""

from __future__ import annotations

import subprocess

from mutants import broken, mutant
from pytest_rlregress.remedies.dependencies import install_without_moves
from pytest_rlregress.scenarios.dependencies import wheel_index

WHEEL, RUN = wheel_index.wheel, wheel_index.run


def installers_fail_otherwise(monkeypatch):
    def run(*command, **keywords):
        if "venv" in command or "torch==2.13.0" in command:
            return RUN(*command, **keywords)
        raise wheel_index.Refused("error: No space left on device (os error 28)")

    monkeypatch.setattr(wheel_index, "run", run)


def uv_install(requirements, python, arguments):
    from uv import find_uv_bin

    command = [find_uv_bin(), "pip", "install", "--python", str(python), *arguments, *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return []


@broken(only="-extension-torch")
def installed_without_a_look(requirements, python, arguments):
    return uv_install(requirements, python, arguments)


@broken(only="-trainer-numpy")
def only_torch_is_watched(requirements, python, arguments):
    try:
        return install_without_moves(requirements, python, arguments)
    except RuntimeError as error:
        if "move torch" in str(error):
            raise
        return uv_install(requirements, python, arguments)


@mutant("absent", only="test_vllm_moves")
def vllm_without_exact_pins(monkeypatch):
    def wheel(folder, name, version, requires=(), **keywords):
        if name == "vllm":
            requires = [one.replace("==", ">=") for one in requires]
        return WHEEL(folder, name, version, requires, **keywords)

    monkeypatch.setattr(wheel_index, "wheel", wheel)


@mutant("changed", only="test_megatron_breaks")
def no_space_left(monkeypatch):
    installers_fail_otherwise(monkeypatch)
