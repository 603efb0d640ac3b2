"""Note which mutated functions are called, in whatever process: each module with mutants imports this."""

from __future__ import annotations

import os
from pathlib import Path

from mutmut.mutation import trampoline

FOLDER = Path(os.environ.get("RLREGRESS_MUTATION", "."))  #: With plan.json, the journal, and the names of functions.
REACHED = FOLDER / "reached.txt"
_noted: set[str] = set()


def _note(name: str, caller: str | None) -> None:
    """Write the name down once a process; called while the mutant is called ``stats``."""
    if name not in _noted:
        _noted.add(name)
        with REACHED.open("a") as file:
            print(name, file=file)


def take() -> set[str]:
    """The names since the last call."""
    found = set(REACHED.read_text().split()) if REACHED.exists() else set()
    REACHED.unlink(missing_ok=True)
    _noted.clear()
    return found


trampoline.record_trampoline_hit = _note
