"""Environments built by uv: where packages come from, how they are resolved and kept.

``uv``           runs uv, with what pip and uv are configured with
``environment``  the environment of a running command, moved from lock to lock; which releases there are
``resolver``     a lock with some packages moved
"""

#: The harness itself: what tries a candidate is the same everywhere.
HARNESS = "pytest-rlregress"


class RequestError(Exception):
    """A request that cannot be answered: the message says why, and what can be done."""
