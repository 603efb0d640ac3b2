"""A golden and its file: one step's numbers on one key, with their tolerances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from pytest_rlregress.records.measurements import Key, Run


class GoldenError(ValueError):
    """A file that isn't a golden, or not that of its name: the message says which and what to do."""


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """One step's numbers on one key.

    Attributes:
        format: Of the file.
        step: Its name, such as "miniature-step".
        settings: The step's.
        runs: One for each variant.
        tolerances: For steps up to which the ``same`` tokens were drawn, and for ``other`` ones, those after that: by
            number, how large |Δ| of any step may be, ``max``, and the mean Δ, ``drift``.
        repeats: How many runs those were measured from, by how they differed.
        origin: Date, commit, driver and versions.
    """

    format: Literal[1] = 1
    step: str
    key: Key
    settings: Mapping[str, Any]
    runs: Sequence[Run]
    tolerances: Mapping[str, Mapping[str, Mapping[str, float]]]
    repeats: Mapping[str, int]
    origin: Mapping[str, Any] = {}

    @property
    def file(self) -> str:
        """Name of its file."""
        return self.key.file(self.step)

    def __str__(self) -> str:
        """Return the step and the key in words."""
        return f"{self.step}, {self.key}"


def read(path: Path) -> Golden:
    """Read a golden from its file.

    Raises:
        GoldenError: It is cut off, not a golden, or of a newer format.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Golden)
    except (OSError, ValueError) as error:
        raise GoldenError(
            f"{path} isn't a golden that this release reads ({error}): restore it, delete it or upgrade this package"
        ) from None


def find(folder: Path, step: str, key: Key) -> Golden | None:
    """Find the golden of exactly this step and key; None if there is none.

    Raises:
        GoldenError: The file of that name isn't a golden, or is another's.
    """
    path = folder / key.file(step)
    if not path.exists():
        return None
    golden = read(path)
    if (golden.step, golden.key) != (step, key):
        raise GoldenError(f"{path} is the golden of {golden}, not of {step}, {key}: move it")
    return golden


def find_nearest(folder: Path, step: str, key: Key) -> Key | None:
    """Find the closest key of another golden of the step for the same device."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            golden = read(path)
        except GoldenError:
            continue
        if (golden.step, golden.key.device) == (step, key.device):
            found.append(golden.key)
    wanted = asdict(key).items()
    return max(found, key=lambda other: len(wanted & asdict(other).items()), default=None)
