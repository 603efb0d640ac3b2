"""Make the kind of bisect that the command line asks for, and print its answer."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pytest_rlregress.bisect import one_package, revisions, two_locks
from pytest_rlregress.bisect.answers.answer import Answer
from pytest_rlregress.bisect.answers.progress import Progress
from pytest_rlregress.bisect.answers.rendering import as_json, as_markdown, as_text
from pytest_rlregress.bisect.context import BisectError, open_context
from pytest_rlregress.bisect.trials.journal import JournalError
from pytest_rlregress.environments.index_settings import IndexProblem
from pytest_rlregress.environments.uv import NoSpace, NoUv
from pytest_rlregress.records import reader
from pytest_rlregress.records.reader import RecordError
from pytest_rlregress.stack.locks import LockError
from pytest_rlregress.util.git import GitError

#: What keeps a bisect from its answer, each with a sentence that says why.
PROBLEMS = (BisectError, LockError, IndexProblem, RecordError, JournalError, GitError, NoSpace, NoUv, OSError)


def run_bisect(options: argparse.Namespace) -> int:
    """Bisect, print the answer and write it; returns the exit code.

    Raises:
        CatalogueError: There is no such failure.
    """
    progress = Progress()
    try:
        for path in filter(None, (options.markdown, options.json)):
            path.parent.mkdir(parents=True, exist_ok=True)
        answer = _find_answer(options, progress)
        progress.set_activity("")
        print(as_text(answer))
        for path, form in ((options.markdown, as_markdown), (options.json, _as_json)):
            if path is not None:
                path.write_text(form(answer), encoding="utf-8")
    except PROBLEMS as error:
        progress.set_activity("")
        print(f"rlregress bisect: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress.report_stop(["rlregress", *options.arguments])
        return 130
    return answer.exit_code


def _find_answer(options: argparse.Namespace, progress: Progress) -> Answer:
    ways = {
        "--good and --bad": (one_package.bisect, options.good, options.bad),
        "--good-lock and --bad-lock": (two_locks.bisect, options.good_lock, options.bad_lock),
        "--from-record and --to-record": (two_locks.bisect, options.from_record, options.to_record),
        "--revisions and --repo": (revisions.bisect, options.revisions, options.repo),
    }
    chosen = [way for way, (_, *ends) in ways.items() if any(ends)]
    if len(chosen) != 1 or not all(ways[chosen[0]]):
        raise BisectError(f"give two ends, one pair of {', '.join(ways)}. rlregress bisect --help has examples")
    tests = options.words[1:] if options.good else options.words
    if options.good and not options.words:
        raise BisectError("name the package that --good and --bad are releases of: rlregress bisect PACKAGE … TEST")
    if options.from_record and not tests:
        tests = _find_flipped_test(options.from_record, options.to_record)
        progress.say(f"went from good to bad: {tests[0]}")
    with open_context(options, tests, progress) as context:
        return ways[chosen[0]][0](context)


def _find_flipped_test(before: Path, after: Path) -> list[str]:
    """Find the one failure or test that went from good to bad between two records."""
    found = list(dict.fromkeys(test.extra.failure or test.name for _, test in reader.flipped(before, after)))
    if not found:
        raise BisectError(f"no test went from good in {before} to bad in {after}: name one")
    if len(found) > 1:
        raise BisectError(f"{len(found)} went from good to bad, name one of them: {', '.join(found)}")
    return found


def _as_json(answer: Answer) -> str:
    return json.dumps(as_json(answer), indent=2) + "\n"
