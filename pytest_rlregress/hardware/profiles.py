"""Hardware profiles as written: one TOML a hardware model, read and checked key by key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

SHIPPED = Path(__file__).parents[1] / "hardware_markers"
FEATURES = ("bf16", "fp8", "fp4")  # what the tensor cores compute in


class HardwareError(Exception):
    """What the user asked for and this hardware, or a profile as written, do not go together."""


@dataclass(frozen=True)
class Profile:
    """One hardware model. Without `nvml_names` it describes the CPU, and fits every machine."""

    id: str
    title: str
    nvml_names: tuple[str, ...]  # regular expressions that match the whole name
    capability: tuple[int, int] | None
    memory_gib: float  # the least that a card of these names reports
    features: tuple[str, ...]
    step: Mapping[str, Any]  # the miniature step's budget here; keys as in STEP
    source: Path
    ray_accelerator: str | None = None  # what Ray calls the card: a node that has one has accelerator_type:THIS

    @property
    def is_cpu(self) -> bool:
        """Whether this profile asks for no GPU."""
        return not self.nvml_names


# Key: is a value right, and what is allowed. `bool` is an `int` in Python, so types are compared exactly.
Rule = tuple[Any, str]
COUNT: Rule = (lambda v: type(v) is int and v >= 1, "a whole number of at least 1")
SHARE: Rule = (lambda v: type(v) is float and 0 < v < 1, "a number between 0 and 1")
STRINGS: Rule = (lambda v: type(v) is list and all(type(s) is str for s in v), "a list of strings")
CPU_KEYS: dict[str, Rule] = {
    "title": (lambda v: type(v) is str and v != "", "a text"),
    "nvml_names": STRINGS,
    "features": (lambda v: STRINGS[0](v) and set(v) <= set(FEATURES), f"a list from {', '.join(FEATURES)}"),
    "step": (lambda v: type(v) is dict, "a table"),
}
GPU_KEYS: dict[str, Rule] = CPU_KEYS | {
    "capability": (lambda v: type(v) is str and re.fullmatch(r"\d+\.\d+", v), 'a string like "9.0"'),
    "memory_gib": (lambda v: type(v) in (int, float) and v >= 0, "a number of GiB"),
}
OPTIONAL_KEYS: dict[str, Rule] = {
    "ray_accelerator": (lambda v: type(v) is str and re.fullmatch(r"[\w.-]+", v), 'a name of Ray\'s, like "H100"'),
}
CPU_STEP: dict[str, Rule] = {
    "dtype": (lambda v: v in ("float32", "bfloat16"), '"float32" or "bfloat16"'),
    "prompt_length": COUNT,
    "response_length": COUNT,
    "prompts": COUNT,
    "samples_per_prompt": (lambda v: type(v) is int and v >= 2, "a whole number of at least 2 (a group)"),
    "max_model_len": COUNT,
    "logprob_tolerance": SHARE,
    "learn_steps": COUNT,
}
STEP: dict[str, Rule] = CPU_STEP | {"gpu_memory_utilization": SHARE}


def load_profiles(extra_dirs: Sequence[Path] = ()) -> dict[str, Profile]:
    """Read the shipped profiles and those in the user's folders (ini rlregress_hardware), by id.

    Raises HardwareError naming file and key for anything malformed, and for an id that is taken.
    """
    profiles: dict[str, Profile] = {}
    for folder in (SHIPPED, *extra_dirs):
        files = sorted(folder.glob("*.toml"))
        if not files:
            raise HardwareError(f"rlregress_hardware: {folder} is no folder with hardware profiles (*.toml).")
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
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HardwareError(f"{file}: not readable as TOML: {error}") from error
    cpu = table.get("nvml_names") == []
    check(file, "", table, CPU_KEYS if cpu else GPU_KEYS, OPTIONAL_KEYS)
    step = table["step"]
    check(file, "step.", step, CPU_STEP if cpu else STEP)
    if step["prompt_length"] + step["response_length"] > step["max_model_len"]:
        raise HardwareError(
            f"{file}: step.max_model_len = {step['max_model_len']} has no room for step.prompt_length + "
            f"step.response_length = {step['prompt_length'] + step['response_length']}."
        )
    for name in table["nvml_names"]:
        try:
            re.compile(name)
        except re.error as error:
            raise HardwareError(f"{file}: nvml_names: {name!r} is no regular expression: {error}") from error
    major, minor = (int(part) for part in table.get("capability", "0.0").split("."))
    return Profile(
        id=file.stem,
        title=table["title"],
        nvml_names=tuple(table["nvml_names"]),
        capability=None if cpu else (major, minor),
        memory_gib=table.get("memory_gib", 0),
        features=tuple(table["features"]),
        step=step,
        source=file,
        ray_accelerator=table.get("ray_accelerator"),
    )


def check(
    file: Path,
    where: str,
    table: Mapping[str, Any],
    rules: Mapping[str, Rule],
    optional: Mapping[str, Rule] = MappingProxyType({}),
) -> None:
    """Raise HardwareError for the first key of `table` that is unknown, missing or wrong."""
    known = {**rules, **optional}
    for key in table:
        if key not in known:
            raise HardwareError(f"{file}: unknown key {where}{key}. Allowed: {', '.join(known)}.")
    for key, (right, allowed) in known.items():
        if key in optional and key not in table:
            continue
        if key not in table:
            raise HardwareError(f"{file}: the key {where}{key} is missing. It takes {allowed}.")
        if not right(table[key]):
            raise HardwareError(f"{file}: {where}{key} = {table[key]!r}. It takes {allowed}.")
