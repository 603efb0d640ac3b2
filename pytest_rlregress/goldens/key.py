"""What a golden holds for: one hardware model and one stack, exactly."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from pytest_rlregress.fixtures.training_step import TrainingStep


@dataclass(frozen=True)
class Key:
    """Runs in which all of this is equal have comparable numbers.

    Attributes:
        device: The GPU's name; of a CPU the model, how many cores are usable and the instruction set torch uses.
        torch: Its minor release, such as "2.13".
        engine: Name and minor release, such as "vllm 0.31".
        attention: The backend of the engine's attention layers.
        dtype: What the engine computes in.
    """

    device: str
    torch: str
    engine: str
    attention: str
    dtype: str

    def __str__(self) -> str:
        """In words."""
        return f"{self.device}, torch {self.torch}, {self.engine}, {self.attention}, {self.dtype}"

    @property
    def file(self) -> str:
        """Name of the golden's file."""
        parts = {**asdict(self), "torch": f"torch {self.torch}"}.values()
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts) + ".json"


def key_of(step: TrainingStep) -> Key:
    """The key of what a miniature step runs on, from torch and from the running engine itself."""
    import torch

    from pytest_rlregress.hardware.processor import cpu

    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        found = cpu()
        device = f"{found['model']} ({found['cores']} cores, {torch.backends.cpu.get_cpu_capability()})"
    engine, _, version = step.about["engine"].partition(" ")
    return Key(
        device, _minor(torch.__version__), f"{engine} {_minor(version)}", step.about["attention"], step.settings.dtype
    )


def _minor(version: str) -> str:
    return ".".join(map(str, Version(version).release[:2]))
