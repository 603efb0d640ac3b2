"""A test in a process of its own: warm start, named ends, limits, no survivor. docs/containment.md has the promises.

It takes and gives plain values: of a run, a documented failure and a verdict it knows nothing. In the order of a test:

``pool``              the warm servers and children of one session, and the GPUs that they hold
``server``            the warm server, which imports the stack once and forks; and between it and a child the
                      supervisor, which takes in every orphan, reports how the child ended, leaves nothing alive
``worker``            pytest inside the child: runs the tests it is given, sends the reports back
``child_config``      the options and plugins of that pytest
``leaks``             inside the child: what a test left behind
``child``             this process' handle on a contained child: watches its limits, tells how it ended

What they look at:

``stacks``            Python and native stacks of a process and its descendants
``post_mortem``       of a dead process: a text on its death, its native libraries, whether memory ran out
``leftovers``         the session's temporary folder, and shared memory that nobody needs any more

``pytest_rlregress.hardware.gpu_lock`` and ``pytest_rlregress.hardware.gpu_memory`` give a GPU to one process at a time
and say who holds its memory; ``pytest_rlregress.logs.watched`` watches the logs that a test depends on.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_rlregress.containment.worker import Channel

#: In a child's ``config.stash``: the channel to the pytest process.
CHANNEL: pytest.StashKey[Channel] = pytest.StashKey()
#: The most that one message of a server or supervisor has.
MESSAGE_BYTES = 65536
#: How long a warm server waits for its supervisors, and then for what it kills.
END_SECONDS, REAP_SECONDS = 15.0, 10.0
#: Makes a child write the stacks of its threads to its log.
STACKS_SIGNAL = signal.SIGUSR1


class Next(Enum):
    """What follows a test in its child, where that isn't a test whose key is known."""

    NOTHING = auto()  # the child ends
    UNKNOWN = auto()  # xdist hasn't said yet


@dataclass(frozen=True)
class RunTest:
    """Tells a child to run a test.

    Attributes:
        key: The test, as ``key_of`` names it.
        following: The key of the test after it in this child.
    """

    key: str
    following: str | Next


@dataclass(frozen=True)
class ImportFile:
    """Tells a child to import a test file as pytest does."""

    path: str


@dataclass(frozen=True)
class Stop:
    """Tells a child to tear down what it holds, and to end."""


Instruction = RunTest | ImportFile | Stop


def key_of(item: pytest.Item) -> str:
    """Name a test alike on both sides: node ids depend on the arguments that a file was collected by."""
    return f"{item.path}::{item.nodeid.partition('::')[2]}"


@dataclass(frozen=True)
class ChildGroup:
    """Contained tests that run in one child, one after the other: those whose groups are equal.

    Attributes:
        name: Of the group, or the test itself when it has a child of its own.
        environment: Variables set before the interpreter starts; not empty means an interpreter of its own.
        fresh: Whether the child comes from an interpreter that imported nothing.
        alone: Whether the child ends with the test.
    """

    name: str
    environment: tuple[tuple[str, str], ...] = ()
    fresh: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Limits:
    """Limits of a test.

    Attributes:
        seconds: From its set-up to the end of its teardown.
        memory: Bytes of it and its descendants together; None for any.
        stall: Seconds to go on after its engine logged an error.
        start: Seconds until its child can run tests.
    """

    seconds: float
    memory: int | None = None
    stall: float = float("inf")
    start: float = 120.0


@dataclass(frozen=True)
class Diagnostics:
    """What the other processes of a test had left when it failed.

    Attributes:
        texts: Titled: the libraries of forks that died of a native fault, the deaths that Ray's logs tell of, the last
            lines of the logs.
        signal: Name of the signal that one of them died of.
    """

    texts: tuple[tuple[str, str], ...] = ()
    signal: str | None = None


NO_DIAGNOSTICS = Diagnostics()


@dataclass(frozen=True)
class Death:
    """How a contained child ended before its test did.

    Attributes:
        kind: ``crashed`` or ``hung``.
        signal: Name of the signal it died of, or None for an exit.
        message: For people: one line, and what is quoted.
        log: What the child wrote to its log since the phase began, stacks included.
        sections: Titled texts: stacks, logs, libraries, what was killed with it.
        seconds: How long the test had run.
    """

    kind: str
    signal: str | None
    message: str
    log: str
    sections: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Order:
    """The settings that make a child the same pytest as its parent: pickled, first message on the channel.

    Attributes:
        files: The files whose tests it runs.
        arguments: What pytest is told to collect: those files, or a folder with some of them.
        collects: Whether it runs tests; otherwise it is there to import files that it is told.
        coverage: The configuration of the measurement that the pytest process takes part in, as coverage serializes it.
    """

    options: dict[str, bytes]
    files: tuple[str, ...]
    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    workerinput: dict[str, Any]
    markers: tuple[str, ...]
    coverage: str | None = None
    collects: bool = True
    path: list[str] = field(default_factory=lambda: list(sys.path))
