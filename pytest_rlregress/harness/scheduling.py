"""Distribution over pytest-xdist's workers: tests that share a contained child share a worker.

Which do is known to the workers, who collect; the controller, who distributes, reads it from a file that they write.
What takes longest begins first, or one worker would be left with it at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from pytest_rlregress.harness.progress import recorded_seconds
from pytest_rlregress.util.files import write_whole

#: Seconds that a test takes on two cores in files and folders of shipped scenarios that start engines and clusters.
SHIPPED_SECONDS = {
    "test_verl_step.py": 43.0,
    "component_checks.py": 1.5,
    "training": 1.1,
    "rollout": 0.85,
    "cluster": 0.6,
    "weight_sync": 0.5,
    "dependencies": 0.4,
}


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's own scheduling by scope; the scope is the group of a contained test, the folder of any other."""

    def __init__(self, config: pytest.Config, log: Any, file: Path) -> None:
        super().__init__(config, log)
        self._file = file
        self._groups: dict[str, str] | None = None
        self._seconds = recorded_seconds(config)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._expected_seconds), last=False)
        super()._assign_work_unit(node)

    def _expected_seconds(self, scope: str) -> float:
        """Return what the tests of a scope took the last time, or would take where the shipped weights come from."""
        return sum(self._seconds.get(test, _usual_seconds(test)) for test in self.workqueue[scope])

    def _split_scope(self, nodeid: str) -> str:
        if self._groups is None:
            self._groups = json.loads(self._file.read_text())
        return self._groups.get(nodeid) or str(PurePath(nodeid.partition("::")[0]).parent)


def _usual_seconds(test: str) -> float:
    """Return what a test takes that has not run here yet."""
    parts = reversed(PurePath(test.partition("::")[0]).parts)
    return next((SHIPPED_SECONDS[part] for part in parts if part in SHIPPED_SECONDS), 0.2)


def write_groups(config: pytest.Config, groups: Mapping[str, str]) -> None:
    """In one of xdist's workers: write down the group of every contained test, by node id."""
    file = getattr(config, "workerinput", {}).get("rlregress_groups")
    if file is not None:
        write_whole(Path(file), json.dumps(dict(groups)))  # every worker collects the same
