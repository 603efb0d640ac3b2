"""Make the kind of bisect that the command line asks for, and print its answer."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_rlregress.commands.bisect import one_package, revisions, two_locks
from pytest_rlregress.commands.bisect.answer import Answer
from pytest_rlregress.commands.bisect.needs import LacksPackages
from pytest_rlregress.commands.bisect.rendering import tell
from pytest_rlregress.commands.trials.context import open_context
from pytest_rlregress.commands.trials.document import run_request
from pytest_rlregress.commands.trials.progress import Progress
from pytest_rlregress.commands.trials.trial import RequestError
from pytest_rlregress.records import reader


def run_bisect(options: argparse.Namespace) -> int:
    """Bisect, print the answer and write it; returns the exit code.

    Raises:
        CatalogueError: There is no such failure.
    """
    return run_request(options, lambda progress: tell(_find_answer(options, progress)))


def _find_answer(options: argparse.Namespace, progress: Progress) -> Answer:
    ways = {
        "--good and --bad": (one_package.bisect, options.good, options.bad),
        "--good-lock and --bad-lock": (two_locks.bisect, options.good_lock, options.bad_lock),
        "--from-record and --to-record": (two_locks.bisect, options.from_record, options.to_record),
        "--revisions and --repo": (revisions.bisect, options.revisions, options.repo),
    }
    chosen = [way for way, (_, *ends) in ways.items() if any(ends)]
    if len(chosen) != 1 or not all(ways[chosen[0]]):
        raise RequestError(f"give two ends, one pair of {', '.join(ways)}. rlregress bisect --help has examples")
    tests = options.words[1:] if options.good else options.words
    if options.good and not options.words:
        raise RequestError("name the package that --good and --bad are releases of: rlregress bisect PACKAGE … TEST")
    if options.from_record and not tests:
        tests = _find_flipped_test(options.from_record, options.to_record)
        progress.say(f"went from good to bad: {tests[0]}")
    if not tests:
        raise RequestError("name the test: a documented failure (rlregress list), a file or a node id")
    while True:
        with open_context(options, tests, progress) as context:
            try:
                return ways[chosen[0]][0](context)
            except LacksPackages as lacking:
                progress.say(f"at an end the test also needs {lacking}, which is installed here: tried again with that")
        options = argparse.Namespace(**{**vars(options), "fresh": False})  # what it needs is kept


def _find_flipped_test(before: Path, after: Path) -> list[str]:
    """Find the one failure or test that went from good to bad between two records."""
    found = list(dict.fromkeys(test.extra.failure or test.name for _, test in reader.flipped(before, after)))
    if not found:
        raise RequestError(f"no test went from good in {before} to bad in {after}: name one")
    if len(found) > 1:
        raise RequestError(f"{len(found)} went from good to bad, name one of them: {', '.join(found)}")
    return found
