"""Environments built by uv: where packages come from, how they are resolved and kept.

``requirements``  what packages require of each other, and which can therefore not be moved alone: pure
``indexes``       where packages come from, and the released versions between two ends
``environment``   the environment of a running command, moved from lock to lock
``resolver``      a lock with some packages moved
``uv``            runs uv
"""

#: The harness itself: what tries a candidate is the same everywhere.
HARNESS = "pytest-rlregress"


class RequestError(Exception):
    """A request that cannot be answered: the message says why, and what can be done."""
