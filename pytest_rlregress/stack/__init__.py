"""The stack under test: what is installed, and locks of packages."""

from pytest_rlregress.stack.installed import (
    COMPONENTS,
    PARTS,
    SYSTEMS,
    InterfaceMissing,
    Stack,
    StackError,
    component_of,
    distributions,
    missing,
    versions,
)

__all__ = [
    "COMPONENTS",
    "PARTS",
    "SYSTEMS",
    "InterfaceMissing",
    "Stack",
    "StackError",
    "component_of",
    "distributions",
    "missing",
    "versions",
]
