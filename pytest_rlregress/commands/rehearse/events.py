"""What a rehearsed command's processes write down, one JSON object a line, and how it is read."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The folder of this rehearsal; its processes have it in their environment.
FOLDER_VARIABLE = "RLREGRESS_REHEARSAL"
STEPS_VARIABLE = "RLREGRESS_REHEARSAL_STEPS"
WORLD_VARIABLE = "RLREGRESS_REHEARSAL_WORLD"
#: Set in the process that rehearses a command of verl's, which imports verl without starting another.
VERL_VARIABLE = "RLREGRESS_REHEARSAL_OF_VERL"
#: Set where nothing is made small: the user's real run.
AS_IS_VARIABLE = "RLREGRESS_REHEARSAL_AS_IS"
FILE = "events.jsonl"


def folder() -> Path:
    """Return the folder of the rehearsal that this process is of."""
    return Path(os.environ[FOLDER_VARIABLE])


def write(kind: str, **content: Any) -> None:
    """Write an event."""
    line = json.dumps({"kind": kind, **content}, default=_make_plain) + "\n"
    with (folder() / FILE).open("a", encoding="utf-8") as file:
        file.write(line)


def _make_plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return repr(value)


def note_change(key: str, old: Any, new: Any, why: str) -> None:
    """Write that a value is another one in the rehearsal than in the user's run."""
    write("change", key=key, old=old, new=new, why=why)


def note_unrehearsed(what: str, why: str) -> None:
    """Write that something of the user's run isn't part of the rehearsal."""
    write("unrehearsed", what=what, why=why)


def note_failure(step: int, error: Exception) -> None:
    """Write that training ended with an error, and whether it is one of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__).parents[2])
    write(
        "failed",
        when=f"in step {step}",
        text=f"{type(error).__name__}: {error}",
        places=[f"{one.filename}:{one.lineno}" for one in frames if not one.filename.startswith(own)],
        ours=frames[-1].filename.startswith(f"{own}{os.sep}"),
        trace="".join(traceback.format_exception(error)),
    )


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a rehearsal; a line that was cut off when its process died is left out."""
    file = path / FILE
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue
