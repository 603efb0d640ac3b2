"""Keep what the installed trainer says of its configuration, until a file changes that it was read from.

Importing a trainer takes seconds. The child names every file that it reads and every folder that it searches. Its
answer is used again while each has the time and size that it had, with the same interpreter and environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from typing import Any

from pytest_rlregress.commands.preflight.command import CHILD, ask
from pytest_rlregress.util.cache import folder as cache_folder
from pytest_rlregress.util.files import write_whole

# They differ from shell to shell and from test to test, and no trainer asks for them.
_PASSING = {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"}


@cache
def ask_installed(name: str, *words: str) -> dict[str, Any]:
    """Return what a program of the trainer that is installed here answers, or answered before.

    Args:
        name: Of the file that keeps it: one for each program.
        words: The program's command.
    """
    file = cache_folder() / "preflight" / f"{name}.json"
    asked = _fingerprint(words)
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["asked"] == asked and kept["stamps"] == _stamps(kept["stamps"]):
            return kept["answer"]  # type: ignore[no-any-return]
    except (OSError, ValueError, LookupError, TypeError):  # none is kept, or something else
        pass
    answer = ask(words, os.environ, [sys.executable])
    if "error" not in answer:
        stamps = _stamps([*answer.pop("read"), *map(str, CHILD.parent.glob("*.py"))])
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"asked": asked, "stamps": stamps, "answer": answer}))
    return answer


def _fingerprint(words: Iterable[str]) -> str:
    """Return one text for the same command, interpreter and environment; the environment may hold secrets."""
    environ = sorted((name, text) for name, text in os.environ.items() if name not in _PASSING)
    return sha256(json.dumps([*words, sys.executable, environ]).encode()).hexdigest()


def _stamps(paths: Iterable[str]) -> dict[str, list[int] | None]:
    """Return the time and the size of each file and folder; None for one that isn't there."""
    return {path: _stamp(path) for path in paths}


def _stamp(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size]
