"""The command ``rlregress``: what the harness knows, without running it. Each sub-command has a room of its own."""

from __future__ import annotations

import argparse
import sys

from pytest_rlregress import catalogue
from pytest_rlregress.bisect import command as bisect
from pytest_rlregress.diagnose import command as diagnose
from pytest_rlregress.fleet import command as fleet
from pytest_rlregress.history import command as history
from pytest_rlregress.preflight import command as preflight
from pytest_rlregress.report import listing

COMMANDS = (listing, diagnose, preflight, bisect, history, fleet)


def main(arguments: list[str] | None = None) -> int:
    """Run the command: the exit code of the sub-command, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="rlregress",
        description="Documented failures of the stack that trains LLMs with RL. To run them: pytest --hw=PROFILE",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for room in COMMANDS:
        room.declare(commands)
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
