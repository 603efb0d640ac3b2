"""Match the machine's GPUs to a hardware profile, and say what a test asks for that is not there."""

from __future__ import annotations

import difflib
import json
import operator
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from pytest_rlregress.hardware.nvml import Gpu, Machine
from pytest_rlregress.hardware.profiles import FEATURES, HardwareError, Profile
from pytest_rlregress.util.text import wrapped
from pytest_rlregress.util.units import GIB, UNITS

#: What a marker can ask of every visible GPU.
REQUIREMENTS = ("capability", "memory", "count", "feature")
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def mismatch(gpu: Gpu, profile: Profile) -> str | None:
    """Say why a GPU is not of a profile: "" for another name altogether, None when it is."""
    names = [name for name in profile.nvml_names if re.fullmatch(name, gpu.name)]
    if gpu.mig and not any("MIG" in name for name in names):
        whole = gpu.name.partition(" MIG")[0]
        sliced = any(re.fullmatch(name, whole) for name in profile.nvml_names)
        return "a MIG slice is not the whole card" if sliced else ""
    if not names:
        return ""
    if gpu.capability != profile.capability:
        return f"its capability is {dotted(gpu.capability)}, not {dotted(profile.capability)}"
    if gpu.memory_bytes is not None and gpu.memory_bytes < profile.memory_gib * GIB:
        return f"it has {gib(gpu.memory_bytes)}, not {profile.memory_gib:g} GiB"
    return None


def match(machine: Machine, profiles: Mapping[str, Profile]) -> Profile | None:
    """Return the profile of the visible GPUs; None without GPUs, or when their model is unknown.

    Raises:
        HardwareError: They are of several models, or two profiles match one of them.
    """
    found: dict[str, tuple[Profile | None, Gpu]] = {}
    for gpu in machine.gpus:
        fits = [profile for profile in profiles.values() if mismatch(gpu, profile) is None]
        if len(fits) > 1:
            both = " and ".join(f"{profile.id} ({profile.source})" for profile in fits)
            raise HardwareError(f"The profiles {both} both match {gpu.name}. Make their nvml_names exclude each other.")
        found.setdefault(fits[0].id if fits else gpu.name, (fits[0] if fits else None, gpu))
    if len(found) > 1:
        choices = "\n".join(f"  {gpu.uuid}  {gpu.name}" for _, gpu in found.values())
        raise HardwareError(
            f"The visible GPUs are of {len(found)} models, and a run is for one: set CUDA_VISIBLE_DEVICES, "
            f"for example to one of\n{choices}"
        )
    return next((profile for profile, _ in found.values()), None)


def select(hw: str, machine: Machine, profiles: Mapping[str, Profile]) -> Profile:
    """Return the profile that ``--hw`` asks for, if this machine is one; ``auto`` is what the machine is.

    Raises:
        HardwareError: The id or the card is unknown, or this is another machine; ``cpu`` is every machine.
    """
    hw = hw.strip().lower()
    if hw != "auto" and hw not in profiles:
        close = difflib.get_close_matches(hw, profiles, n=3)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise HardwareError(f"--hw={hw} isn't a hardware profile. {hint}Allowed: auto, list, {', '.join(profiles)}.")
    if hw != "auto" and profiles[hw].is_cpu:
        return profiles[hw]
    found = match(machine, profiles)
    if hw == "auto":
        if found is None and machine.gpus:
            raise HardwareError(unknown_card(machine, profiles))
        return found or profiles["cpu"]
    if found is not None and found.id == hw:
        return found
    has = "; ".join(dict.fromkeys(describe_gpu(gpu) for gpu in machine.gpus)) or "no GPU"
    note = f" ({machine.note})" if machine.note else ""
    why = next((f" {r[0].upper()}{r[1:]}." for gpu in machine.gpus if (r := mismatch(gpu, profiles[hw]))), "")
    fit = [found.id] if found else []
    fit += [profile.id for profile in profiles.values() if profile.is_cpu]
    more = "" if found or not machine.gpus else " --hw=auto says how to add a profile for it."
    raise HardwareError(
        f"--hw={hw} asks for {profiles[hw].title}, but this machine has {has}{note}.{why} "
        f"Profiles that fit here: {', '.join(fit)}.{more}"
    )


def unknown_card(machine: Machine, profiles: Mapping[str, Profile]) -> str:
    """Say what to do about a card without a profile."""
    gpu = machine.gpus[0]
    near = [f" It is not {p.id}: {reason}." for p in profiles.values() if (reason := mismatch(gpu, p))]
    return (
        f"No hardware profile matches {describe_gpu(gpu)}.{''.join(near)} To add one, save this as FOLDER/ID.toml, "
        "adjust the step, and name the folder in ini rlregress_hardware; or run with --hw=cpu.\n\n"
        + profile_template(gpu, profiles)
    )


def profile_template(gpu: Gpu, profiles: Mapping[str, Profile]) -> str:
    """Write a profile for this card as TOML: what NVML says, and the step of the smallest GPU of its kind."""
    since = {"bf16": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}
    has_bf16 = gpu.capability >= since["bf16"]
    alike = [one for one in profiles.values() if not one.is_cpu and ("bf16" in one.features) == has_bf16]
    least = min(alike, key=lambda profile: profile.memory_gib)
    table = {
        "title": gpu.name,
        "nvml_names": [re.sub(r"([.()+*?\[\]{}|^$\\])", r"\\\1", gpu.name)],
        "capability": dotted(gpu.capability),
        "memory_gib": (gpu.memory_bytes or 0) // GIB,
        "features": [feature for feature in FEATURES if gpu.capability >= since[feature]],
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    lines += ["", "[step]", *(f"{key} = {json.dumps(value)}" for key, value in least.step.items())]
    return "\n".join(lines) + "\n"


def unmet(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    profile: Profile,
    machine: Machine,
    known: Collection[str],
) -> str | None:
    """Say what a test marked ``hw(*args, **kwargs)`` needs and does not have here; None when it can run.

    Under a CPU profile a test runs only when it names it.

    Args:
        args: Profile ids, of which one must be the run's.
        kwargs: About every visible GPU: capability=">=9.0", memory=">=70GiB", count=2 (at least), feature="fp8".
        profile: The run's.
        machine: The one it runs on.
        known: The ids of all profiles.

    Raises:
        HardwareError: There is no such keyword, value or profile.
    """
    for name in args:
        if not isinstance(name, str) or name not in known:
            raise HardwareError(f"hw({name!r}): no such hardware profile. Allowed: {', '.join(known)}.")
    for key in kwargs:
        if key not in REQUIREMENTS:
            raise HardwareError(f"hw({key}=…): unknown keyword. Allowed: {', '.join(REQUIREMENTS)}.")
    reasons = [_lacking(key, value, profile, machine) for key, value in kwargs.items()]
    if args and profile.id not in args:
        return f"{' or '.join(args)}, this run is --hw={profile.id}"
    if profile.is_cpu:
        return None if args else f"a GPU, this run is --hw={profile.id}"
    return next((reason for reason in reasons if reason), None)


def _lacking(key: str, value: Any, profile: Profile, machine: Machine) -> str | None:
    """Say what one keyword of the marker asks for that is not here; None when it is."""
    if key == "feature":
        if value not in FEATURES:
            raise HardwareError(f"hw(feature={value!r}): unknown feature. Allowed: {', '.join(FEATURES)}.")
        return None if value in profile.features else f"{value}, which {profile.title} does not have"
    if key == "count":
        if type(value) is not int or value < 1:
            raise HardwareError(f"hw(count={value!r}): not a number of GPUs. Allowed: 1, 2, …")
        return f"{value} GPUs, {len(machine.gpus)} visible" if len(machine.gpus) < value else None
    if key == "capability":
        try:
            wanted = SpecifierSet(value if type(value) is str and value else "?")  # as a version: 12.0 is above 9.0
        except InvalidSpecifier as error:
            raise HardwareError(f"hw(capability={value!r}): not a comparison. Allowed: like '>=9.0'.") from error
        short = next((gpu for gpu in machine.gpus if not wanted.contains(dotted(gpu.capability))), None)
        return f"capability {value}, {short.name} has {dotted(short.capability)}" if short else None
    found = re.fullmatch(rf"\s*({'|'.join(COMPARE)})\s*(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})\s*", str(value))
    if not found:
        raise HardwareError(f"hw(memory={value!r}): not a comparison. Allowed: like '>=70GiB', in GiB or GB.")
    holds, limit = COMPARE[found[1]], float(found[2]) * UNITS[found[3]]
    for gpu in machine.gpus:
        if gpu.memory_bytes is None or not holds(gpu.memory_bytes, limit):
            return f"memory {value}, {gpu.name} has {gib(gpu.memory_bytes)}"
    return None


def describe_machine(machine: Machine, profiles: Mapping[str, Profile]) -> str:
    """Describe this machine, in lines of at most 100 columns."""
    lines = [part for gpu in machine.gpus for part in (f"GPU {gpu.index}: {describe_gpu(gpu)}", f"  {gpu.uuid}")]
    lines += [f"driver {machine.driver}"] if machine.driver else []
    lines += [machine.note]
    try:
        profile = select("auto", machine, profiles)
    except HardwareError as error:
        lines += str(error).splitlines()
    else:
        lines.append(f"--hw=auto is --hw={profile.id} ({profile.title})")
    return "\n".join(part for text in lines for part in wrapped(text))


def describe_profiles(profiles: Mapping[str, Profile], machine: Machine) -> str:
    """List the profiles with what each needs, in lines of at most 100 columns; * marks those that fit here."""
    rows = [f"  {'--hw':<23}{'hardware':<31}{'capability':<12}{'memory':<10}{'features':<14}step"]
    for profile in profiles.values():
        fits = profile.is_cpu or (machine.gpus and all(mismatch(gpu, profile) is None for gpu in machine.gpus))
        memory = f"{profile.memory_gib:g} GiB" if profile.memory_gib else "-"
        title = textwrap.shorten(profile.title, 30, placeholder="…")
        rows.append(
            f"{'*' if fits else ' '} {profile.id:<23}{title:<31}{dotted(profile.capability) or '-':<12}"
            f"{memory:<10}{' '.join(profile.features) or '-':<14}{profile.step['dtype']}"
        )
    return "\n".join([*rows, "* fits this machine; memory is the least a card of that model reports"])


def describe_gpu(gpu: Gpu) -> str:
    """Describe a GPU in a line."""
    mig = "MIG slice, " if gpu.mig else ""
    return f"{gpu.name} ({mig}capability {dotted(gpu.capability)}, {gib(gpu.memory_bytes)})"


def dotted(capability: tuple[int, int] | None) -> str:
    """Write a capability as NVIDIA does: (9, 0) is 9.0."""
    return ".".join(str(part) for part in capability or ())


def gib(memory_bytes: int | None) -> str:
    """Write memory in GiB."""
    return "memory not reported" if memory_bytes is None else f"{memory_bytes / GIB:.1f} GiB"
