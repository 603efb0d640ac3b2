"""Where is kept what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """That of environment ``RLREGRESS_CACHE_DIR``, else the user's own; it need not be there yet."""
    own = os.environ.get("RLREGRESS_CACHE_DIR")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlregress"
