"""The processor: its model, and how much of it this process may use."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any


def cpu() -> dict[str, Any]:
    """The processor's ``model``, and how many ``cores`` of it this process may use, logical ones."""
    try:
        told = re.search(r"^model name\s*: (.+)", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        told = None
    model = told[1].strip() if told else platform.processor() or platform.machine()
    return {"model": model, "cores": len(os.sched_getaffinity(0))}
