"""What the harness puts on a test's reports: user properties, so that junit, xdist and JSON carry it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_PREFIX = "rlregress_"


def add(to: pytest.TestReport | pytest.Item, **values: str) -> None:
    """Add values to a report, or to a test and so to its reports, each under its name; an empty one is left out."""
    to.user_properties += [(_PREFIX + name, value) for name, value in values.items() if value]


def read(report: Any) -> dict[str, str]:
    """Read a report's values by name: those of a verdict, and as JSON what was measured. A collection's has none."""
    return {
        name.removeprefix(_PREFIX): str(value)
        for name, value in getattr(report, "user_properties", ())
        if name.startswith(_PREFIX)
    }


def take(report: pytest.TestReport | pytest.Item, name: str) -> str | None:
    """Remove a value from a report, or from a test, and return it; None if it has none."""
    found = read(report).get(name)
    report.user_properties[:] = [(key, value) for key, value in report.user_properties if key != _PREFIX + name]
    return found
