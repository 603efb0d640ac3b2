"""How long to wait on this machine before saying that something doesn't come."""

import time
from collections.abc import Callable

#: Seconds until a broken remedy is ended that waits for ever. No verdict depends on it: a late machine needs less.
FOR_EVER = 120.0


def measure_patience(act: Callable[[], object], least: float = 1.0, times: float = 10.0) -> float:
    """Run ``act``, which ends, and return how many seconds to wait for something of its kind that may never end."""
    begun = time.monotonic()
    act()
    return max(least, times * (time.monotonic() - begun))
