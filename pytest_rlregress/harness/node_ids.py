"""Test ids that do not depend on the root folder or the environment."""

from __future__ import annotations

from pathlib import Path

from pytest_rlregress.failures.catalogue import SHIPPED


def stable_id(nodeid: str, path: Path) -> str:
    """Return ``batch/test_x.py::test_y[a]`` for a test of a shipped scenario, else the node id.

    Args:
        nodeid: pytest's, which begins with a path of the file; where from depends on pytest's arguments.
        path: The file.
    """
    found, shipped = path.resolve(), SHIPPED.resolve()
    if not found.is_relative_to(shipped):
        return nodeid
    _, colons, rest = nodeid.partition("::")
    return f"{found.relative_to(shipped).as_posix()}{colons}{rest}"
