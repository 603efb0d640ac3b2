"""The options of ``rlregress moved --matrix``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_rlregress.util import arguments

#: The trainers.
TRAINERS = ("verl", "trl")
#: The packages below them.
BELOW = ("vllm", "transformers", "tensordict", "ray")


def add_options(parser: Any) -> None:
    """Add the options of a matrix to the command's parser."""
    group = parser.add_argument_group("releases by releases")
    group.add_argument(
        "--matrix",
        nargs="+",
        metavar="TRAINER",
        help=f"trainers ({', '.join(TRAINERS)}): which names and calls of their last releases bind in those of --with",
    )
    group.add_argument(
        "--with", dest="below", action="append", metavar="PACKAGE", help=f"{', '.join(BELOW)}; may be repeated"
    )
    group.add_argument("--last", type=arguments.count, metavar="N", help="how many releases of each (default: 8)")
    group.add_argument("--out", type=Path, metavar="FILE.md", help="write the page there, and print its short form")


def is_asked(options: argparse.Namespace) -> bool:
    """Return whether an option of a matrix is given."""
    return bool(options.matrix or options.below or options.last or options.out)


def find_problem(options: argparse.Namespace) -> str:
    """Find what is wrong with the options of a matrix, in a sentence; "" for nothing."""
    if not options.matrix:
        given = [
            name
            for name, value in (("--with", options.below), ("--last", options.last), ("--out", options.out))
            if value
        ]
        return f"{given[0]} belongs to --matrix: write rlregress moved --matrix verl trl --with vllm"
    if options.words or options.behind:
        extra = [*options.words, *options.behind][0]
        return f"--matrix compares releases with releases, not a run: leave out {extra!r}"
    for name in options.matrix:
        if name not in TRAINERS:
            return f"{name!r} isn't a trainer that is compared: --matrix takes {' and '.join(TRAINERS)}"
    if not options.below:
        return f"--matrix needs a package below the trainers: --with {', --with '.join(BELOW)}"
    for name in options.below:
        if name not in BELOW:
            return f"{name!r} isn't a package below the trainers: --with takes {', '.join(BELOW)}"
    if options.out and options.out.suffix != ".md":
        return f"{options.out} isn't a Markdown file: write a name that ends in .md"
    if options.out and not options.out.absolute().parent.is_dir():
        return f"{options.out.parent} isn't a folder: make it, or write another name"
    return ""
