"""``rlregress upgrade``: may I upgrade?"""

from __future__ import annotations

import argparse
from typing import Any

from pytest_rlregress.trials import declare_answer, declare_environments, declare_trials
from pytest_rlregress.util import arguments

#: What stands behind -- is a training command, which is rehearsed.
TAKES_A_COMMAND = True
_MANUAL = """\
examples:
  what would change if I took it?
    rlregress upgrade vllm==0.32.0
  several together, with the tests of one folder of the scenarios, and one file of mine
    rlregress upgrade transformers trl==1.16.0 rollout tests/test_mine.py
  does my own run still train the same? (rlregress rehearse --help)
    rlregress upgrade vllm==0.32.0 -- trl grpo --config grpo.yaml
  every package to the newest release that all requirements allow, mine included
    rlregress upgrade --all --requirements requirements.txt
  the largest set of upgrades that makes nothing worse, as a lock
    rlregress upgrade --all --stepwise --output safe.txt

It is resolved against this environment, built beside it and never in it, and the same tests are run in both. A package
that is not installed here is taken for a test: a folder of the scenarios, a documented failure (rlregress list), a file
or a node id. Without any, all scenarios are run, as pytest --hw=auto does. What is bad here already is said first and
does not count. No package goes back behind its version here unless you name it, or allow it with --may-downgrade. What
takes a trainer or an engine back is never called safe. A package whose newest release cannot be installed here stays.

Interrupted, it goes on with the same command. Exit codes: 0 safe, 1 not safe, 2 could not be answered (no such
version, a conflict, no network, no disk, tests that cannot be run).
"""


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "upgrade",
        description="Say before an upgrade what it would change: verdicts, workarounds, what can be tested.",
        epilog=_MANUAL,
        formatter_class=arguments.ManualFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PACKAGE[==VERSION] | TEST",
        help="what is upgraded, to its newest release where no version is said; and the tests",
    )
    upgrade = parser.add_argument_group("the upgrade")
    upgrade.add_argument(
        "--all", action="store_true", help="upgrade every package to the newest release that all requirements allow"
    )
    upgrade.add_argument(
        "--stepwise", action="store_true", help="find the largest set of upgrades that makes nothing worse"
    )
    upgrade.add_argument(
        "--requirements", type=arguments.path, metavar="FILE", help="conditions on versions that a project of yours has"
    )
    upgrade.add_argument(
        "--may-downgrade",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="this package may be downgraded if nothing else is possible",
    )
    upgrade.add_argument("--pre", action="store_true", help="a PACKAGE without a version may become a pre-release")
    declare_trials(parser.add_argument_group("tests"), timeout=7200, hw="auto")
    parser.set_defaults(run=run)
    declare_environments(parser.add_argument_group("environments"))
    output = parser.add_argument_group("the answer")
    output.add_argument(
        "--output",
        type=arguments.output,
        metavar="FILE",
        help="the lock of what is safe: all of it, or with --stepwise that set",
    )
    declare_answer(output)


def run(asked: argparse.Namespace) -> int:
    """Preview the upgrade, print the answer; returns the exit code."""
    # All that it takes: not for those who ask for help.
    from pytest_rlregress.commands.upgrade.answer import tell
    from pytest_rlregress.commands.upgrade.preview import preview_upgrade
    from pytest_rlregress.trials import context

    return context.run_request(asked, lambda progress: tell(preview_upgrade(asked, progress)))
