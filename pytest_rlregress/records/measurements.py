"""The numbers of a training step that two runs are compared by, and what they may be compared on.

A run of a step is a dict of JSON values: ``step`` and ``variant``, which say what ran; ``steps``, how many; a list with
one value a step for each number that is compared, under names of the step's own; and, of these, what is known:
``step_seconds`` and ``tokens_per_second``, lists too, ``device_memory_bytes``, ``host_memory_bytes``, ``sampled``, for
each step a hash of the tokens drawn so far, ``stand_ins``, plain names of what took a real part's place, and
``not_seen``, which properties of the step could not be checked (``step_record``), each with the reason.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

Run = dict[str, Any]
MINIATURE = "miniature-step"
#: Of a run's lists those that aren't numbers to compare: speed, and what was run.
_OTHER_LISTS = frozenset({"step_seconds", "tokens_per_second", "sampled", "stand_ins"})


@dataclass(frozen=True)
class Key:
    """Hardware and stack on which numbers are comparable.

    Attributes:
        device: The GPU's name; of a CPU the model, how many cores are usable and the instruction set torch uses.
        torch: Its minor release, such as "2.13".
        engine: Name and minor release of what draws the tokens, such as "vllm 0.31".
        attention: The backend of the engine's attention layers.
        dtype: What the engine computes in.
    """

    device: str
    torch: str
    engine: str
    attention: str
    dtype: str

    def __str__(self) -> str:
        """Return the key in words."""
        return f"{self.device}, torch {self.torch}, {self.engine}, {self.attention}, {self.dtype}"

    def file(self, step: str) -> str:
        """Name of the file of a step's golden."""
        parts = [step, *{**asdict(self), "torch": f"torch {self.torch}"}.values()]
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts) + ".json"


def numbers_of(run: Run) -> tuple[str, ...]:
    """Return the names of the numbers that a run is compared by."""
    return tuple(name for name, value in run.items() if isinstance(value, list) and name not in _OTHER_LISTS)
