"""The folder in which the package keeps what it can make again: environments, answers of indexes, tiny models."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """Return the cache folder: environment ``RLREGRESS_CACHE_DIR``, else the user's own; it need not exist yet."""
    own = os.environ.get("RLREGRESS_CACHE_DIR")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlregress"
