"""Try sets of packages: an environment for each, the same tests in it, and what came out. Serves bisect and upgrade.

Here are the options that both share, so that ``--help`` imports none of the rest.

``context``       the tests that were named, what is kept of their trials; prints the answer
``trial``         candidates; tries one, its environment and its runs; a folder keeps them: none is tried twice
``pytest_run``    one run of the tests in an environment, and what came out
``configuration`` what a trial takes of the user's ini file, addopts and variables
``rehearsal``     the test that rehearses a command, for the one behind ``--``
``trial_plugin``  pytest's side of that: records what came out
``search``        which candidate or set to try next: pure
``document``      an answer as text, Markdown and JSON
``upgrades``      what changed between two locks, in units that can only be moved together
"""

from __future__ import annotations

from typing import Any

from pytest_rlregress.failures import catalogue
from pytest_rlregress.util import arguments, cache


def declare_trials(group: Any, *, timeout: float, hw: str | None = None) -> None:
    """Add the options on how tests are run, with these values unless others are given."""
    catalogue.declare(group)
    group.add_argument(
        "--hw",
        metavar="PROFILE",
        default=hw,
        help=f"run the tests as this hardware profile, as pytest --hw does{f' (default: {hw})' if hw else ''}",
    )
    group.add_argument(
        "--repeat", type=arguments.count, default=1, metavar="N", help="runs of each candidate (default: 1)"
    )
    group.add_argument(
        "--timeout",
        type=arguments.seconds,
        default=timeout,
        metavar="SECONDS",
        help=f"for one run (default: {timeout:g})",
    )
    group.add_argument("--pytest", default="", metavar="OPTIONS", help='more options for pytest: --pytest="-k one"')
    group.add_argument("--fresh", action="store_true", help="forget what was tried before")


def declare_environments(group: Any) -> None:
    """Add the options on environments and where they are kept."""
    group.add_argument("--no-network", action="store_true", help="use what is cached")
    group.add_argument(
        "--cache-dir",
        type=arguments.path,
        default=cache.folder(),
        metavar="DIR",
        help="the environment and what was tried (default: %(default)s; also: environment RLREGRESS_CACHE_DIR)",
    )


def declare_answer(group: Any) -> None:
    """Add the options on where the answer is written to."""
    group.add_argument(
        "--markdown", type=arguments.output, metavar="FILE", help="also as Markdown, to be pasted into an issue"
    )
    group.add_argument("--json", type=arguments.output, metavar="FILE", help="also as JSON")
