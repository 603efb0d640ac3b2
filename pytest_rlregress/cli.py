"""The command ``rlregress``: each sub-command is imported when it is asked for."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

#: The sub-commands, each a package with a module ``NAME_command``, and what ``rlregress --help`` says of it.
COMMANDS = {
    "list": "every documented failure, with cause and remedy",
    "new": "write the skeleton of a scenario from an error text",
    "diagnose": "the documented failures that logs show",
    "preflight": "check a trainer's configuration for the documented failures, before a GPU is rented",
    "audit": "check a batch that a trainer dumped: masks, log-probabilities, rewards, groups",
    "upgrade": "may I upgrade? What would change, before it is done",
    "bisect": "which upgrade broke a test",
    "report": "what changed between runs: a page, and a gate for CI",
    "run": "the tests on several kinds of hardware of a Ray cluster",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command: the exit code of the sub-command, 2 for bad input, or 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="rlregress",
        description="Documented failures of the stack that trains LLMs with RL. To run them: pytest --hw=PROFILE",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in COMMANDS.items():
        if arguments[:1] == [name]:
            import_module(f"pytest_rlregress.{name}.{name}_command").declare(commands)
        else:
            commands.add_parser(name, help=summary)
    # argparse lets the words of a command end where its options begin: those after them come back as rest.
    options, rest = parser.parse_known_args(arguments)
    words = [word for word in rest if word != "--"]
    if words and (not hasattr(options, "words") or any(word.startswith("-") for word in words)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if words:
        options.words += words
    options.arguments = arguments
    from pytest_rlregress.catalogue import CatalogueError

    try:
        return int(options.run(options))
    except CatalogueError as error:
        print(f"rlregress: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"rlregress {options.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
