"""The stack under test: what is installed, which native libraries a process has loaded, and locks of packages."""

from pytest_rlregress.stack.installed import COMPONENTS, SYSTEMS, Component, Stack, StackError, missing, versions
from pytest_rlregress.stack.native_libraries import LIBRARIES, libraries_in, library_version, mapped_libraries

__all__ = [
    "COMPONENTS",
    "LIBRARIES",
    "SYSTEMS",
    "Component",
    "Stack",
    "StackError",
    "libraries_in",
    "library_version",
    "mapped_libraries",
    "missing",
    "versions",
]
