"""The command ``rlregress`` and its sub-commands."""

from __future__ import annotations

import argparse
import sys

from pytest_rlregress import catalogue
from pytest_rlregress.bisect import bisect_command
from pytest_rlregress.diagnose import diagnose_command
from pytest_rlregress.list import list_command
from pytest_rlregress.preflight import preflight_command
from pytest_rlregress.report import report_command
from pytest_rlregress.run import run_command

COMMANDS = (list_command, diagnose_command, preflight_command, bisect_command, report_command, run_command)


def main(arguments: list[str] | None = None) -> int:
    """Run the command: the exit code of the sub-command, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="rlregress",
        description="Documented failures of the stack that trains LLMs with RL. To run them: pytest --hw=PROFILE",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.declare(commands)
    # argparse lets the words of a command end where its options begin: those after them come back as rest.
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "words") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.words += rest
    options.arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return int(options.run(options))
    except catalogue.CatalogueError as error:
        print(f"rlregress: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
