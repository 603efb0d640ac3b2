"""A golden and its file: one step's numbers on one key, with their tolerances."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlregress.fixtures.step_key import Key
from pytest_rlregress.fixtures.step_measurements import Run

FORMAT = 1


class GoldenError(ValueError):
    """A file that isn't a golden, or not that of its name: the message says which and what to do."""


@dataclass(frozen=True)
class Golden:
    """One step's numbers on one key.

    Attributes:
        step: Its name, such as "miniature-step".
        settings: The step's.
        runs: One for each variant.
        tolerances: For steps up to which the ``same`` tokens were drawn, and for ``other`` ones, those after that: by
            number, how large |Δ| of any step may be, ``max``, and the mean Δ, ``drift``.
        repeats: How many runs those were measured from, by how they differed.
        origin: Date, commit, driver and versions.
    """

    step: str
    key: Key
    settings: Mapping[str, Any]
    runs: Sequence[Run]
    tolerances: Mapping[str, Mapping[str, Mapping[str, float]]]
    repeats: Mapping[str, int]
    origin: Mapping[str, Any]

    @property
    def file(self) -> str:
        """Name of its file."""
        return self.key.file(self.step)

    def __str__(self) -> str:
        """Return the step and the key in words."""
        return f"{self.step}, {self.key}"


def as_json(golden: Golden) -> dict[str, Any]:
    """Return the content of the golden's file."""
    return {"format": FORMAT, **asdict(golden)}


def of_json(found: object) -> Golden:
    """Build a golden from the content of its file.

    Raises:
        ValueError: It is something else.
    """
    return msgspec.convert(found, Golden)


def read(path: Path) -> Golden:
    """Read a golden from its file.

    Raises:
        GoldenError: It is cut off, no golden, of a newer format, or of another key than its name says.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        form = found["format"]
        golden = of_json(found) if form == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GoldenError(
            f"{path} isn't a golden, or one that was cut off ({error!r}): delete it or restore it"
        ) from None
    if golden is None:
        raise GoldenError(f"{path} has format {form!r}, known here is {FORMAT}: pip install -U pytest-rlregress")
    if golden.file != path.name:
        raise GoldenError(f"{path} is the golden of {golden}: its name would be {golden.file}")
    return golden


def find(folder: Path, step: str, key: Key) -> Golden | None:
    """Find the golden of exactly this step and key; None if there is none.

    Raises:
        GoldenError: As ``read``.
    """
    path = folder / key.file(step)
    if not path.exists():
        return None
    golden = read(path)
    if (golden.step, golden.key) != (step, key):
        raise GoldenError(f"{path} is the golden of {golden}, not of {step}, {key}, which it is named like: move it")
    return golden


def nearest(folder: Path, step: str, key: Key) -> Key | None:
    """Find the closest key of another golden of the step for the same device."""
    wanted = asdict(key)
    best: tuple[int, Key | None] = 0, None
    for path in sorted(folder.glob("*.json")):
        try:
            found = read(path)
        except GoldenError:
            continue
        if found.step != step:
            continue
        other = found.key
        common = sum(value == wanted[name] for name, value in asdict(other).items())
        if other.device == key.device and common > best[0]:
            best = common, other
    return best[1]
