"""Remedies for dependencies: what an install changes, and what a setting needs to be installed."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

__all__ = [
    "cuda_arch_list",
    "hide_trl_from_verl",
    "import_attempts",
    "install_without_moves",
    "missing_symbol",
]

# What each setting makes a trainer import, and which setting to change where that is not there.
_NEEDED_BY = {
    "megatron": (
        ("megatron.core.parallel_state:initialize_model_parallel",),
        'install megatron-core (verl 0.9: pip install "verl[megatron]"), or set strategy=fsdp',
    ),
    "mbridge": (
        (
            "mbridge:AutoBridge",
            "mbridge.utils.post_creation_callbacks:make_value_model",
            "mbridge.utils.post_creation_callbacks:freeze_moe_router",
        ),
        "install mbridge, or set megatron.use_mbridge=False (verl before 0.9), megatron.vanilla_mbridge=False "
        "(the default of verl 0.9, which needs Megatron-Bridge) or strategy=fsdp",
    ),
    "megatron-bridge": (
        ("megatron.bridge:AutoBridge",),
        'install megatron-bridge (verl 0.9: pip install "verl[megatron]"), or set strategy=fsdp; '
        "megatron.vanilla_mbridge=True, which needs mbridge, is deprecated",
    ),
    "apex": (
        # torch first: without its libraries in the process no extension built for it loads.
        ("torch:Tensor", "fused_weight_gradient_mlp_cuda:wgrad_gemm_accum_fp32"),
        "set gradient_accumulation_fusion=False, or build Apex with --cpp_ext and --cuda_ext",
    ),
    "vllm": (
        ("vllm:LLM",),
        'install vllm (pip install "verl[vllm]" or "trl[vllm]"), or set rollout.name to an engine that is installed',
    ),
    "flash-attn": (
        ("flash_attn:flash_attn_func", "flash_attn:flash_attn_varlen_func"),
        "set attn_implementation=sdpa, or install a flash-attn built for the installed torch",
    ),
}

# What a package imports itself: where that is missing, it is not the package that has to be installed.
_BEFORE = {"mbridge": "megatron", "megatron-bridge": "megatron"}


def missing_symbol(setting: str) -> str | None:
    """Say what a setting needs that cannot be imported here.

    A name on the path is not enough: partial installs exist (Apex without its CUDA extensions, a stub module in an
    engine's place, a library built for another torch), so the symbols are imported, which for vllm takes seconds.

    Args:
        setting: ``megatron``, ``mbridge``, ``megatron-bridge``, ``apex`` (gradient accumulation fusion), ``vllm`` or
            ``flash-attn``.

    Returns:
        None if all that the setting needs can be imported, else one sentence naming the first symbol that cannot, why,
        and which setting to change. Both bridges need what ``megatron`` needs, which is looked for first.

    Raises:
        ValueError: Another setting.
    """
    if setting not in _NEEDED_BY:
        raise ValueError(f"setting {setting!r}: not known which symbols it needs. Allowed: {', '.join(_NEEDED_BY)}.")
    if setting in _BEFORE and (missing := missing_symbol(_BEFORE[setting])):
        return missing
    symbols, instead = _NEEDED_BY[setting]
    for symbol in symbols:
        module, _, name = symbol.partition(":")
        try:
            getattr(import_module(module), name)
        except Exception as error:  # a native library that does not fit raises more than ImportError
            why = str(error).partition("\n")[0]
            return f"{module}.{name} cannot be imported here ({type(error).__name__}: {why}): {instead}."
    return None


@contextmanager
def import_attempts(package: str) -> Iterator[list[str]]:
    """Record who tries to import a package that is left out on purpose, such as DeepSpeed.

    Looking whether it is there (``importlib.util.find_spec``) isn't an attempt; an import inside ``try`` is one.
    Nothing is refused or changed. Modules imported before are not looked at.

    Args:
        package: Top-level name, such as ``deepspeed``.

    Yields:
        A list that grows by "file:line" for each attempt; empty when the path is free of the package.

    Raises:
        RuntimeError: The package is imported already, so that further imports would not be seen.
    """
    if package in sys.modules:
        raise RuntimeError(f"{package} is imported already: look at what imports it from a fresh interpreter.")
    attempts: list[str] = []

    def look(name: str, path: object = None, target: object = None) -> None:
        if name != package:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame and frame.f_globals["__name__"] in ("importlib", "importlib._bootstrap"):
            frame = frame.f_back
        if frame and frame.f_globals["__name__"] != "importlib.util":
            attempts.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")

    recorder: Any = SimpleNamespace(find_spec=look)
    sys.meta_path.insert(0, recorder)
    try:
        yield attempts
    finally:
        sys.meta_path.remove(recorder)


def install_without_moves(
    requirements: Sequence[str], python: str | Path = sys.executable, arguments: Sequence[str] = ()
) -> list[str]:
    """Install what adds packages only: resolve first, and refuse where an installed one would change its version.

    Args:
        requirements: As on the command line of ``uv pip install``: ``vllm``, ``numpy<2``.
        python: Interpreter of the environment to install into.
        arguments: More arguments of ``uv pip install``, such as ``["--find-links", folder]``.

    Returns:
        What was added, as "name==version".

    Raises:
        RuntimeError: Something would move (which, from which version to which) or nothing fits; nothing was installed.
    """
    from uv import find_uv_bin

    def install(*more: str) -> str:
        command = [find_uv_bin(), "pip", "install", "--color=never", "--python", str(python), *arguments, *requirements]
        done = subprocess.run([*command, *more], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{', '.join(requirements)} cannot be installed here: {done.stderr.strip()}")
        return done.stderr

    would = install("--dry-run")
    old = dict(re.findall(r"^ - ([^\s=]+)==(\S+)", would, re.MULTILINE))
    new = dict(re.findall(r"^ \+ ([^\s=]+)==(\S+)", would, re.MULTILINE))
    moves = [f"{name} {version} -> {new[name]}" for name, version in sorted(old.items())]
    if moves:
        raise RuntimeError(
            f"Installing {', '.join(requirements)} would move {', '.join(moves)}: nothing was installed. "
            "Allowed: versions that keep what is installed, or an environment of their own."
        )
    install()
    return [f"{name}=={version}" for name, version in sorted(new.items())]


def cuda_arch_list(capability: tuple[int, int]) -> str:
    """Return ``TORCH_CUDA_ARCH_LIST`` for GPUs of a compute capability: its binary, and PTX for newer ones.

    To be set wherever extensions are built: without it torch asks the GPUs it sees, and a build machine has none.

    Args:
        capability: (12, 0) for Blackwell workstations, (9, 0) for Hopper, as ``torch.cuda.get_device_capability()``.

    Returns:
        Such as ``12.0+PTX``.

    Raises:
        ValueError: Not a capability.
    """
    major, minor = capability
    if major < 1 or not 0 <= minor <= 9:
        raise ValueError(f"{capability!r} isn't a compute capability. Allowed: (major, minor), such as (12, 0).")
    return f"{major}.{minor}+PTX"


def hide_trl_from_verl() -> str | None:
    """Hide TRL from verl in this process, if TRL doesn't have the class that verl takes from it.

    verl needs the class for critics with a value head alone, and imports it for every actor. To be called in each
    process of verl: in a module that ``VERL_USE_EXTERNAL_MODULES`` names, say. Others still import TRL.

    Returns:
        What was done, with both versions; None where TRL has the class for verl, or one of the two isn't installed.
    """
    name = "AutoModelForCausalLMWithValueHead"
    verl = find_spec("verl")
    if find_spec("trl") is None or verl is None or not verl.submodule_search_locations:
        return None
    source = Path(verl.submodule_search_locations[0], "models/transformers/monkey_patch.py").read_text("utf-8")
    # verl 0.7 looks in trl alone.
    places = [module for module in ("trl.experimental.ppo", "trl") if f"from {module} import {name}" in source]
    if any(_has(module, name) for module in places):
        return None
    from verl.utils import import_utils

    asked = import_utils.is_trl_available
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "verl"]:
        if vars(module).get("is_trl_available") is asked:
            module.is_trl_available = lambda: False  # type: ignore[attr-defined]
    return (
        f"trl {metadata.version('trl')} has no {name}, which verl {metadata.version('verl')} imports for every actor: "
        "verl now takes TRL for not installed. A critic with a value head needs trl<1.13"
    )


def _has(module: str, name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trl.experimental warns of itself
        try:
            return hasattr(import_module(module), name)
        except Exception:  # whatever a module raises that does not suit the rest of the stack
            return False
