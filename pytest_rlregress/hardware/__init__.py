"""Hardware: what NVML sees (nvml), the profiles (profiles), which of them fits (matching), who uses a GPU (gpu_*)."""

from pytest_rlregress.hardware.matching import (
    describe_gpu,
    describe_machine,
    describe_profiles,
    match,
    profile_template,
    select,
    unmet,
)
from pytest_rlregress.hardware.nvml import Gpu, Machine, discover
from pytest_rlregress.hardware.profiles import HardwareError, Profile, load_profiles

__all__ = [
    "Gpu",
    "HardwareError",
    "Machine",
    "Profile",
    "describe_gpu",
    "describe_machine",
    "describe_profiles",
    "discover",
    "load_profiles",
    "match",
    "profile_template",
    "select",
    "unmet",
]
