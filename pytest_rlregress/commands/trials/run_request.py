"""Answer what a command was asked: print the answer and write it, or say in a sentence why there is none."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from pytest_rlregress.commands.environments.index_settings import IndexProblem
from pytest_rlregress.commands.environments.uv import NoSpace, NoUv
from pytest_rlregress.commands.trials.document import Document, to_json, to_markdown, to_text
from pytest_rlregress.commands.trials.progress import Progress
from pytest_rlregress.commands.trials.trial import RequestError
from pytest_rlregress.records.reader import RecordError
from pytest_rlregress.stack.locks import LockError
from pytest_rlregress.util.git import GitError

#: What keeps a command from its answer, each with a sentence that says why.
PROBLEMS = (RequestError, LockError, IndexProblem, RecordError, GitError, NoSpace, NoUv, OSError)


def run_request(options: argparse.Namespace, find: Callable[[Progress], Document]) -> int:
    """Find the answer, print it and write it; returns the exit code.

    Raises:
        CatalogueError: There is no such failure.
    """
    progress = Progress()
    try:
        for path in filter(None, (options.markdown, options.json)):
            path.parent.mkdir(parents=True, exist_ok=True)
        answer = find(progress)
        progress.set_activity("")
        print(to_text(answer))
        if options.markdown is not None:
            options.markdown.write_text(to_markdown(answer), encoding="utf-8")
        if options.json is not None:
            options.json.write_text(json.dumps(to_json(answer), indent=2) + "\n", encoding="utf-8")
    except PROBLEMS as error:
        progress.set_activity("")
        print(f"rlregress {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress.report_stop(["rlregress", *options.arguments])
        return 130
    return answer.exit_code
