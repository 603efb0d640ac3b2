"""Keep what is derived from a release: under the key of its wheel and of the code that derives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pytest_rlregress.stack import class_sources
from pytest_rlregress.util.files import write_whole


class Facts:
    """Keeps answers as JSON.

    Args:
        folder: Where; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, else make it and keep it; a key of None keeps nothing."""
        found = self.peek(key)
        return self.keep(key, make()) if found is None else found

    def peek(self, key: object) -> Any:
        """Return what is kept under a key; None where nothing is, or it was cut off."""
        try:
            return None if key is None else json.loads(self._name(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def keep(self, key: object, made: Any) -> Any:
        """Keep an answer, unless the key is None; returns it as it will be read."""
        text = json.dumps(made, default=str)
        if key is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._name(key), text)
        return json.loads(text)

    def _name(self, key: object) -> Path:
        named = json.dumps([_hash_code(), key], default=str)
        return self._folder / f"{sha256(named.encode()).hexdigest()[:32]}.json"


@cache
def _hash_code() -> str:
    """Hash the source that derives facts: one that other code derived is made again."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(class_sources.__file__)]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
