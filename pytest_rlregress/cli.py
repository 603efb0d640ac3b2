"""The command ``rlregress``: what the harness knows, without running it."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path

from pytest_rlregress import catalogue
from pytest_rlregress.stack import Stack


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="rlregress",
        description="Documented failures of the stack that trains LLMs with RL. To run them: pytest --hw=PROFILE",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    lister = commands.add_parser(
        "list",
        help="every documented failure, with cause and remedy",
        description="Print every documented failure: where it was seen, what is expected of it on the installed stack, "
        "its cause and its remedy.",
    )
    lister.add_argument("id", nargs="*", help="only these failures")
    lister.add_argument(
        "--scenarios", type=Path, action="append", default=[], metavar="FOLDER", help="scenarios of your own"
    )
    lister.add_argument("--json", action="store_true", help="as a JSON list")
    options = parser.parse_args(arguments)
    try:
        return _list(options)
    except catalogue.CatalogueError as error:
        print(f"rlregress: {error}", file=sys.stderr)
        return 2


def _list(options: argparse.Namespace) -> int:
    known = catalogue.load([catalogue.SHIPPED, *options.scenarios])
    chosen = [known.find(failure_id, "rlregress list") for failure_id in options.id] or list(known.values())
    stack = Stack.installed()
    if options.json:
        print(json.dumps([_as_json(failure, stack) for failure in chosen], indent=2))
        return 0
    for failure in chosen:
        print(f"{failure.id}: {failure.title}")
        for key, value in _as_json(failure, stack).items():
            if key not in ("id", "title") and value:
                text = ", ".join(map(" ".join, value.items())) if isinstance(value, dict) else str(value)
                print(textwrap.fill(f"  {key.replace('_', ' ')}: {text}", 100, subsequent_indent="    "))
        print()
    print(f"{len(chosen)} failures")
    return 0


def _as_json(failure: catalogue.Failure, stack: Stack) -> dict[str, object]:
    return {
        "id": failure.id,
        "title": failure.title,
        "seen_on": failure.seen_on,
        "seen": failure.seen,
        "measured": failure.measured,
        "components": dict(failure.components),
        "cause": failure.cause,
        "remedy": failure.remedy,
        "subject": failure.subject,
        "expected_here": failure.expects(None, stack) if failure.signatures else None,
    }


if __name__ == "__main__":
    sys.exit(main())
