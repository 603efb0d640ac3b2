"""Environments built by uv: what they hold, where packages come from, how they are resolved and kept.

``contents``      what is held fixed: this environment, or the part of it that the tests need
``requirements``  what packages require of each other, and which can therefore not be moved alone: pure
``indexes``       where packages come from, and the released versions between two ends
``environment``   the environment of a running command, moved from lock to lock
``resolver``      a lock with some packages moved
``uv``            runs uv
"""


class RequestError(Exception):
    """A request that cannot be answered: the message says why, and what can be done."""
