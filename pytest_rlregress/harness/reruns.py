"""pytest-rerunfailures for contained tests: how often one that failed is run again, each time in a new process."""

from __future__ import annotations

import re
from typing import Any

import pytest


def reruns_of(item: pytest.Item) -> tuple[int, float]:
    """Return how often a failed test may run again and the seconds to wait before, as pytest-rerunfailures was told.

    Never for the reproduces side: a documented failure that goes away the second time would count as repaired.
    """
    plugin: Any = item.config.pluginmanager.get_plugin("rerunfailures")
    if plugin is None or item.get_closest_marker("reproduces") is not None:
        return 0, 0.0
    return int(plugin.get_reruns_count(item) or 0), float(plugin.get_reruns_delay(item))


def wanted(item: pytest.Item, report: pytest.TestReport) -> bool:
    """Return whether a failure is to be tried again: not if --only-rerun or --rerun-except leaves it out."""
    if not report.failed or hasattr(report, "wasxfail"):
        return False
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else report.longreprtext
    only, never = _patterns(item, "only_rerun"), _patterns(item, "rerun_except")
    return (not only or any(re.search(text, message) for text in only)) and not any(
        re.search(text, message) for text in never
    )


def _patterns(item: pytest.Item, name: str) -> list[str]:
    """Regular expressions of the marker ``flaky``, else those of the command line."""
    marker = item.get_closest_marker("flaky")
    given = (marker.kwargs.get(name) if marker else None) or item.config.getoption(name, None) or []
    return [given] if isinstance(given, str) else list(given)
