"""Hardware profiles: one TOML file for each hardware model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress.util import toml_table
from pytest_rlregress.util.toml_table import rule

SHIPPED = Path(__file__).parents[1] / "hardware_markers"
#: What tensor cores may compute in.
FEATURES = ("bf16", "fp8", "fp4")


class HardwareError(Exception):
    """What the user asked for and this hardware, or a profile as written, do not go together."""


@dataclass(frozen=True)
class Profile:
    """One hardware model.

    Attributes:
        nvml_names: Regular expressions that match the whole name; none for a CPU, which every machine has.
        features: What of ``FEATURES`` its tensor cores compute in.
        step: The miniature step's budget here.
        memory_gib: The least that a card of these names reports.
        ray_accelerator: What Ray calls the card: a node that has one has the resource ``accelerator_type:THIS``.
    """

    id: str
    source: Path
    title: str
    nvml_names: tuple[str, ...]
    features: tuple[str, ...]
    step: Mapping[str, Any]
    capability: tuple[int, int] | None = None
    memory_gib: float = 0
    ray_accelerator: str | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether this profile asks for no GPU."""
        return not self.nvml_names


def _patterns(value: Any) -> tuple[str, ...]:
    for pattern in toml_table.texts(value):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"regular expressions; {pattern!r} isn't one: {error}") from None
    return tuple(value)


def _capability(value: Any) -> tuple[int, int]:
    if not isinstance(value, str) or not re.fullmatch(r"\d+\.\d+", value):
        raise ValueError('a text such as "9.0"')
    major, minor = value.split(".")
    return int(major), int(minor)


def _features(value: Any) -> tuple[str, ...]:
    if not set(toml_table.texts(value)) <= set(FEATURES):
        raise ValueError(f"a list from {', '.join(FEATURES)}")
    return tuple(value)


# `bool` is an `int` in Python, so types are compared exactly.
_COUNT = rule(lambda v: type(v) is int and v >= 1, "a whole number of at least 1")
_SHARE = rule(lambda v: type(v) is float and 0 < v < 1, "a number between 0 and 1")
_CPU_KEYS = {"title": toml_table.text, "nvml_names": _patterns, "features": _features, "step": toml_table.table}
_GPU_KEYS = _CPU_KEYS | {
    "capability": _capability,
    "memory_gib": rule(lambda v: type(v) in (int, float) and v >= 0, "a number of GiB"),
}
_OPTIONAL_KEYS = {
    "ray_accelerator": rule(lambda v: type(v) is str and re.fullmatch(r"[\w.-]+", v), 'a name of Ray\'s, like "H100"'),
}
_CPU_STEP = dict.fromkeys(("prompt_length", "response_length", "prompts", "max_model_len", "learn_steps"), _COUNT) | {
    "dtype": toml_table.one_of("float32", "bfloat16", "float16"),
    "samples_per_prompt": rule(lambda v: type(v) is int and v >= 2, "a whole number of at least 2 (a group)"),
    "logprob_tolerance": _SHARE,
}
_GPU_STEP = _CPU_STEP | {"gpu_memory_utilization": _SHARE}


def load_profiles(extra_dirs: Sequence[Path] = ()) -> dict[str, Profile]:
    """Read the shipped profiles and those in the user's folders (ini ``rlregress_hardware``), by id.

    Raises:
        HardwareError: A profile is malformed, or its id is taken; names file and key.
    """
    profiles: dict[str, Profile] = {}
    for folder in (SHIPPED, *extra_dirs):
        files = sorted(folder.glob("*.toml"))
        if not files:
            raise HardwareError(f"rlregress_hardware: {folder} isn't a folder with hardware profiles (*.toml).")
        for file in files:
            profile = read_profile(file)
            if profile.id in profiles:
                raise HardwareError(
                    f"{file}: the id {profile.id!r}, which is the file's name, is already that of "
                    f"{profiles[profile.id].source}. Rename the file."
                )
            profiles[profile.id] = profile
    return profiles


def read_profile(file: Path) -> Profile:
    """Read and check one profile."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", file.stem) or file.stem in ("auto", "list"):
        raise HardwareError(
            f"{file}: the file's name is the profile's id, as in --hw=ID. Allowed: small letters, digits and "
            "hyphens, and neither auto nor list."
        )
    table = toml_table.load(file, HardwareError)
    cpu = table.get("nvml_names") == []
    values = toml_table.check(table, str(file), HardwareError, _CPU_KEYS if cpu else _GPU_KEYS, _OPTIONAL_KEYS)
    step = toml_table.check(values["step"], f"{file}: step", HardwareError, _CPU_STEP if cpu else _GPU_STEP)
    if step["prompt_length"] + step["response_length"] > step["max_model_len"]:
        raise HardwareError(
            f"{file}: step: key 'max_model_len': {step['max_model_len']} is not allowed; "
            f"allowed: prompt_length + response_length, {step['prompt_length'] + step['response_length']}, or more"
        )
    return Profile(id=file.stem, source=file, **values)
