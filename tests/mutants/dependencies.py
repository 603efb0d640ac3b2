"""Mutants of scenarios/dependencies: what an install changes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import SimpleNamespace

from mutants import broken, mutant
from pytest_rlregress.remedies.dependencies import (
    cuda_arch_list,
    install_without_moves,
)
from pytest_rlregress.scenarios.dependencies import wheel_index

WHEEL, RUN = wheel_index.wheel, wheel_index.run


def installers_fail_otherwise(monkeypatch):
    def run(*command, **keywords):
        if "venv" in command or "torch==2.13.0" in command:
            return RUN(*command, **keywords)
        raise wheel_index.Refused("error: No space left on device (os error 28)")

    monkeypatch.setattr(wheel_index, "run", run)


# install-moves-pins


def uv_install(requirements, python, arguments):
    from uv import find_uv_bin

    command = [find_uv_bin(), "pip", "install", "--python", str(python), *arguments, *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return []


@broken("install-moves-pins", only="-extension-torch")
def installed_without_a_look(requirements, python, arguments):
    return uv_install(requirements, python, arguments)


@broken("install-moves-pins", only="-extension-torch")
def said_after_the_act(requirements, python, arguments):
    try:
        return install_without_moves(requirements, python, arguments)
    except RuntimeError:
        uv_install(requirements, python, arguments)
        raise


@broken("install-moves-pins", only="-trainer-numpy")
def only_torch_is_watched(requirements, python, arguments):
    try:
        return install_without_moves(requirements, python, arguments)
    except RuntimeError as error:
        if "move torch" in str(error):
            raise
        return uv_install(requirements, python, arguments)


@broken("install-moves-pins", only="moves_nothing")
def everything_refused(requirements, python, arguments):
    raise RuntimeError(f"{requirements} might move something")


@broken("install-moves-pins", only="cannot_be_resolved")
def the_rest_installed_alone(requirements, python, arguments):
    with contextlib.suppress(RuntimeError):
        return install_without_moves(requirements, python, arguments)
    return install_without_moves(requirements[:1], python, arguments)


@mutant("install-moves-pins", "absent", only="test_vllm_moves")
def vllm_without_exact_pins(monkeypatch):
    def wheel(folder, name, version, requires=(), **keywords):
        if name == "vllm":
            requires = [one.replace("==", ">=") for one in requires]
        return WHEEL(folder, name, version, requires, **keywords)

    monkeypatch.setattr(wheel_index, "wheel", wheel)


@mutant("install-moves-pins", "changed", only="test_megatron_breaks")
def no_space_left(monkeypatch):
    installers_fail_otherwise(monkeypatch)


# cuda-arch-list


@broken("cuda-arch-list", only="-12.0]")
def without_ptx(capability):
    return cuda_arch_list(capability).removesuffix("+PTX")


@broken("cuda-arch-list", only="-12.0]")
def as_nvcc_writes_it(capability):
    return cuda_arch_list(capability).replace(".", "")


@broken("cuda-arch-list", only="-9.0]")
def always_blackwell(capability):
    return "12.0+PTX"


@broken("cuda-arch-list", only="-12.0]")
def by_the_name_of_the_family(capability):
    return "Blackwell"


@broken("cuda-arch-list", only="no_capability")
def anything_goes(capability):
    return "{}.{}+PTX".format(*capability)


@mutant("cuda-arch-list", "absent")
def all_known_architectures(monkeypatch):
    from torch.utils import cpp_extension

    flags = cpp_extension._get_cuda_arch_flags

    def arch_flags(cflags=None):
        try:
            return flags(cflags)
        except Exception:  # no GPU to ask, or a list that torch does not know
            return ["-arch=all"]

    monkeypatch.setattr(cpp_extension, "_get_cuda_arch_flags", arch_flags)


@mutant("cuda-arch-list", "changed")
def the_toolkit_is_missing(monkeypatch):
    from torch.utils import cpp_extension

    def arch_flags():
        raise OSError("CUDA_HOME environment variable is not set")

    monkeypatch.setattr(cpp_extension, "_get_cuda_arch_flags", arch_flags)


# deepspeed-not-needed


@broken("deepspeed-not-needed", only="by_name")
@contextlib.contextmanager
def nothing_recorded(package):
    yield []


@broken("deepspeed-not-needed", only="left-out-by")
@contextlib.contextmanager
def looks_recorded_too(package):
    attempts = []

    def look(name, path=None, target=None):
        if name == package:
            attempts.append(name)

    recorder = SimpleNamespace(find_spec=look)
    sys.meta_path.insert(0, recorder)
    yield attempts
    sys.meta_path.remove(recorder)


@broken("deepspeed-not-needed", only="left-out-by")
@contextlib.contextmanager
def only_what_was_imported(package):
    attempts = []
    yield attempts
    attempts += [package] * (package in sys.modules)


@broken("deepspeed-not-needed", only="-installed-by")
@contextlib.contextmanager
def refused_instead_of_watched(package):
    sys.modules[package] = None
    yield []
    del sys.modules[package]


@mutant("deepspeed-not-needed", "absent", only="launcher")
def the_launcher_takes_fsdp_instead(monkeypatch):
    import accelerate

    def without_deepspeed(**keywords):
        monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
        return accelerator(**keywords)

    accelerator = accelerate.Accelerator
    monkeypatch.setattr(accelerate, "Accelerator", without_deepspeed)


@mutant("deepspeed-not-needed", "changed", only="launcher")
def another_package_is_missing(monkeypatch):
    import accelerate

    def refuse(**keywords):
        raise ImportError("Using the `Trainer` with `PyTorch` requires `accelerate>=1.1.0`")

    monkeypatch.setattr(accelerate, "Accelerator", refuse)
