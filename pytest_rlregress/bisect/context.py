"""What every kind of bisect works with: the tests that were named, where packages come from, where things are kept."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_rlregress import catalogue
from pytest_rlregress.bisect.answers.progress import Progress
from pytest_rlregress.bisect.trials import pytest_run
from pytest_rlregress.bisect.trials.journal import TrialJournal
from pytest_rlregress.bisect.trials.pytest_run import TrialRequest
from pytest_rlregress.bisect.trials.runner import Builder, TrialRunner
from pytest_rlregress.environments import index_settings
from pytest_rlregress.environments.environment import Environments


class BisectError(ValueError):
    """A bisect that cannot be made: the message says why, and what can be."""


@dataclass(frozen=True)
class BisectContext:
    """What every kind of bisect works with.

    Attributes:
        options: The command line's.
        failures: The catalogue.
        request: The tests.
        progress: Told of everything.
        environments: Where environments are built.
        settings: Where packages come from.
    """

    options: argparse.Namespace
    failures: catalogue.Catalogue
    request: TrialRequest
    progress: Progress
    environments: Environments
    settings: index_settings.IndexSettings

    @cached_property
    def needed_components(self) -> tuple[str, ...] | None:
        """Components of the stack that the tests say they need; None where one says nothing, or all is to be held."""
        return None if self.options.all_packages else pytest_run.find_needed(self.request)

    @contextmanager
    def runner(
        self, key: Mapping[str, Any], builder: Builder | None = None, request: TrialRequest | None = None
    ) -> Iterator[TrialRunner]:
        """Make what tries the candidates of this bisect, with what is known of them from before.

        Args:
            key: All that tells this bisect from others, beside the tests.
            builder: What builds environments, where these are not the usual ones.
            request: The tests, where they are not run from where they were named.
        """
        request_key = {
            **key,
            "tests": [*self.request.arguments, self.request.failure],
            "options": self.request.options,
            "contents": _hash_contents(self.request, self.failures),
            "repeat": self.options.repeat,
            "machine": [platform.node(), platform.machine(), platform.python_version()],
        }
        name = hashlib.sha256(json.dumps(request_key, sort_keys=True).encode()).hexdigest()[:16]
        path = self.options.cache_dir / "journals" / f"{name}.jsonl"
        with TrialJournal.open(path, request_key, fresh=self.options.fresh) as journal:
            self.progress.report_known(len(journal.trials))
            runner = TrialRunner(
                builder or self.environments,
                journal,
                request or self.request,
                repeat=self.options.repeat,
                timeout=self.options.timeout,
                jobs=self.options.jobs,
                set_activity=self.progress.set_activity,
                say=self.progress.say,
            )
            try:
                yield runner
            finally:
                self.environments.close()  # first: it ends uv where that builds ahead
                runner.close()


@contextmanager
def open_context(options: argparse.Namespace, tests: Sequence[str], progress: Progress) -> Iterator[BisectContext]:
    """Make the context of a bisect of these tests: documented failures, files or node ids.

    Raises:
        BisectError: There is no such test.
        CatalogueError: There is no such failure.
        IndexProblem: pip's or uv's configuration cannot be read.
        NoUv: uv is not installed.
    """
    known = catalogue.load([catalogue.SHIPPED, *options.scenarios])
    request = _make_request(tests, options, known)
    settings = index_settings.read_settings(os.environ)
    environments = Environments(
        options.cache_dir / "environments",
        settings=settings,
        offline=options.no_network,
        limit=options.env_size_limit,
        say=progress.say,
    )
    try:
        yield BisectContext(options, known, request, progress, environments, settings)
    finally:
        environments.close()


def _make_request(tests: Sequence[str], options: argparse.Namespace, known: catalogue.Catalogue) -> TrialRequest:
    if not tests:
        raise BisectError("name the test: a documented failure (rlregress list), a file or a node id")
    own = os.pathsep.join(str(folder.resolve()) for folder in options.scenarios)
    try:
        given = shlex.split(options.pytest)
    except ValueError as error:
        raise BisectError(f"--pytest {options.pytest!r} is no list of options: {error}") from None
    more = (
        *([f"--hw={options.hw}"] if options.hw else []),
        *(["-o", f"rlregress_scenarios={own}"] if own else []),
        *given,
    )
    found = [_find_shipped(test) if not _path_of(test).exists() else test for test in tests]
    missing = [test for test in found if not _path_of(test).exists()]
    if not missing:
        return TrialRequest(tuple(found), options=more)
    folder, _, failure_id = tests[0].rpartition("/")
    if len(tests) > 1 or "::" in missing[0] or missing[0].endswith(".py"):
        raise BisectError(f"no such test: {missing[0]}: there is no file {_path_of(missing[0])}")
    failure = known.find(failure_id, "rlregress bisect")
    if folder and failure.source.parent.name != folder:
        raise BisectError(f"{failure.id} lies in {failure.source.parent.name}/, not in {folder}/")
    return TrialRequest(failure=failure.id, options=more)


def _find_shipped(test: str) -> str:
    """Find the node id of a shipped test that is named by its key; any other name stays as it is."""
    found = catalogue.SHIPPED / test
    return str(found) if _path_of(str(found)).is_file() else test


def _hash_contents(request: TrialRequest, known: catalogue.Catalogue) -> str:
    """Hash the files of the tests: what was tried with other tests says nothing about these."""
    paths = [_path_of(test) for test in request.arguments]
    if request.failure:
        paths.append(known[request.failure].source.parent)
    files = sorted({file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])})
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _path_of(test: str) -> Path:
    return Path(test.partition("::")[0])
