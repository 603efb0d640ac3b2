"""Values as people write them: seconds, and sizes of memory."""

from __future__ import annotations

import re

GIB = 2**30
#: Bytes in the units that memory is given in.
UNITS = {"GiB": GIB, "MiB": 2**20, "GB": 10**9, "MB": 10**6}
_LARGEST = 1e9  # of units: far above what a machine has, and still a number of bytes that the kernel takes


def parse_seconds(value: object) -> float:
    """Read a time limit: a positive number of seconds; ``inf`` for none.

    Raises:
        ValueError: The text isn't one; the message says what is allowed.
    """
    try:
        number = float(str(value))
    except ValueError:
        number = 0.0
    if not number > 0:
        raise ValueError("a positive number of seconds, or inf for no limit")
    return number


def parse_memory(value: object) -> int:
    """Read a limit on memory with its unit, such as ``4GiB`` or ``500 MB``, in bytes.

    Raises:
        ValueError: The text isn't one; the message says what is allowed.
    """
    size = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})\s*", str(value))
    if size is None or not 0 < float(size[1]) < _LARGEST:
        raise ValueError("a size with its unit, such as '4GiB' or '500MB'")
    return int(float(size[1]) * UNITS[size[2]])


def format_duration(seconds: float) -> str:
    """Return a number of seconds as people say it: ``4.2 s``, ``14 s``, ``1 min 12 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
