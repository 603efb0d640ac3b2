"""What the pytest process and the processes of a contained test say to each other, and how they name a test."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

#: The most that one message of a server or supervisor has.
MESSAGE_BYTES = 65536
#: Makes a child write the stacks of its threads to its log.
STACKS_SIGNAL = signal.SIGUSR1
#: In place of the test that follows: the first word is not a test but a file to import.
IMPORT = "import"


@dataclass(frozen=True)
class Coverage:
    """The coverage measurement that the pytest process takes part in.

    Attributes:
        data_file: Absolute path; a child writes beside it, under a name of its own, to be combined.
        config_file: As coverage takes it.
        options: Values by coverage's own option names, such as ``run:branch``.
    """

    data_file: str
    config_file: str | bool
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Order:
    """What the child needs to be the same pytest as its parent: pickled, first message on the channel.

    Attributes:
        kept: A file whose tests other plugins may not leave out.
        collects: Whether it runs tests; otherwise it is there to import files that it is told.
    """

    options: dict[str, bytes]
    files: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    workerinput: dict[str, Any]
    markers: tuple[str, ...]
    coverage: Coverage | None = None
    kept: str = ""
    collects: bool = True
    path: list[str] = field(default_factory=lambda: list(sys.path))


def key_of(item: pytest.Item) -> str:
    """Name a test alike on both sides: node ids depend on the arguments that a file was collected by."""
    return f"{item.path}::{item.nodeid.partition('::')[2]}"
