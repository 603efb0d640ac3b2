"""The processor: its model, and how much of it this process may use."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

from pytest_rlregress.util.files import text_or_nothing


def cpu() -> dict[str, Any]:
    """Return the processor's ``model``, and how many ``cores`` of it this process may use, logical ones."""
    told = re.search(r"^model name\s*: (.+)", text_or_nothing("/proc/cpuinfo"), re.MULTILINE)
    model = told[1].strip() if told else platform.processor() or platform.machine()
    return {"model": model, "cores": len(os.sched_getaffinity(0))}
