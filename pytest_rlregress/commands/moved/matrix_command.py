"""``rlregress moved --matrix``: releases of trainers with releases of the packages below them, as a page."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys

from pytest_rlregress.commands.moved.checker import find_checker
from pytest_rlregress.commands.moved.facts import Facts
from pytest_rlregress.commands.moved.index import Index, NoSuchRelease, NotRead
from pytest_rlregress.commands.moved.matrix import Matrix, read_matrices
from pytest_rlregress.commands.moved.matrix_options import find_problem
from pytest_rlregress.commands.moved.matrix_page import as_json, summarize, tell_newest, write_page
from pytest_rlregress.commands.moved.reading import Reader
from pytest_rlregress.commands.moved.wheels import Releases
from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.uv import read_sources
from pytest_rlregress.util.files import write_whole


def run(options: argparse.Namespace) -> int:
    """Check the releases, and print or write the page; returns the exit code."""
    problem = find_problem(options)
    if problem:
        print(f"rlregress moved: {problem}", file=sys.stderr)
        return 2
    folder = options.cache_dir / "moved"
    trainers, below = [*dict.fromkeys(options.matrix)], [*dict.fromkeys(options.below)]
    matrices: list[Matrix] = []
    try:
        find_checker()
        index = Index(read_sources(os.environ), folder, offline=options.offline)
        reader = Reader(Releases(index, folder), Facts(folder / "facts"))
        for package in below:
            matrices += read_matrices(trainers, package, options.last or 8, reader, _tell)
        page = write_page(matrices, _describe(options, trainers, below))
        if options.out:
            write_whole(options.out, page)
    except (NoSuchRelease, RequestError) as error:
        print(f"rlregress moved: {error}", file=sys.stderr)
        return 2
    except NotRead as error:
        print(f"rlregress moved: not read: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"rlregress moved: {options.out}: {error.strerror}", file=sys.stderr)
        return 2
    if options.json:
        print(
            json.dumps({"matrices": as_json(matrices), "sentence": summarize(matrices)}, indent=2, ensure_ascii=False)
        )
    elif options.out:
        print("\n".join([*(tell_newest(one).replace("**", "") for one in matrices), summarize(matrices)]))
    else:
        print(page, end="")
    return find_exit_code(matrices)


def find_exit_code(matrices: list[Matrix]) -> int:
    """Return 1 if something breaks, 3 if nothing does and something wasn't read, else 0."""
    cells = [cell for matrix in matrices for cell in matrix.cells.values()]
    if any(cell.breaks or cell.optional for cell in cells):
        return 1
    return 3 if any(cell.not_read for cell in cells) else 0


def _describe(options: argparse.Namespace, trainers: list[str], below: list[str]) -> str:
    words = ["rlregress", "moved", "--matrix", *trainers, *(word for one in below for word in ("--with", one))]
    if options.last:
        words += ["--last", str(options.last)]
    return shlex.join(words)


def _tell(line: str) -> None:
    print(f"rlregress moved: {line}", file=sys.stderr, flush=True)
