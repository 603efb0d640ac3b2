"""Distribution over pytest-xdist's workers: the tests of a folder share a contained child, so they share a worker."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling


class ByFolder(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's own scheduling by scope, with the test file's folder as the scope."""

    def _split_scope(self, nodeid: str) -> str:
        return str(PurePath(nodeid.partition("::")[0]).parent)
