"""Distribution over pytest-xdist's workers: tests that share a contained child share a worker.

Which do is known to the workers, who collect; the controller, who distributes, reads it from a file that they write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from pytest_rlregress.util.files import write_whole


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's own scheduling by scope; the scope is the group of a contained test, the folder of any other."""

    def __init__(self, config: pytest.Config, log: Any, file: Path) -> None:
        super().__init__(config, log)
        self._file = file
        self._groups: dict[str, str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self._groups is None:
            self._groups = json.loads(self._file.read_text())
        return self._groups.get(nodeid) or str(PurePath(nodeid.partition("::")[0]).parent)


def write_groups(config: pytest.Config, groups: Mapping[str, str]) -> None:
    """In one of xdist's workers: write down the group of every contained test, by node id."""
    file = getattr(config, "workerinput", {}).get("rlregress_groups")
    if file is not None:
        write_whole(Path(file), json.dumps(dict(groups)))  # every worker collects the same
