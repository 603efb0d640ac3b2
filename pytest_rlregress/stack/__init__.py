"""The stack under test: what is installed, which native libraries a process has loaded, and locks of packages."""

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
from pytest_rlregress.stack.native_libraries import libraries_in, library_version

__all__ = [
    "COMPONENTS",
    "PARTS",
    "SYSTEMS",
    "InterfaceMissing",
    "Stack",
    "StackError",
    "component_of",
    "distributions",
    "libraries_in",
    "library_version",
    "missing",
    "versions",
]
