"""What every command with trials works with: the tests that were named, where packages come from and are kept."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.environment import Environment, Environments
from pytest_rlregress.environments.uv import read_settings
from pytest_rlregress.failures import catalogue
from pytest_rlregress.records.reader import RecordError
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock, LockError
from pytest_rlregress.trials import configuration
from pytest_rlregress.trials.document import Document, to_json, to_markdown, to_text
from pytest_rlregress.trials.pytest_run import TrialRequest
from pytest_rlregress.trials.trial import FORMAT, Progress, TrialFolder, TrialRunner
from pytest_rlregress.util.ends import Ended
from pytest_rlregress.util.git import GitError

# Folders that many distributions and projects have, and that say nothing of whose code is imported.
_NOBODYS_MODULES = {"__pycache__", "benchmarks", "docs", "examples", "scripts", "test", "tests", "tools"}


@dataclass(frozen=True)
class TrialContext:
    """The objects that every command with trials works with."""

    options: argparse.Namespace  # the command line's
    failures: catalogue.Catalogue
    request: TrialRequest  # the tests
    progress: Progress
    environments: Environments

    @cached_property
    def _tests_key(self) -> Mapping[str, Any]:
        request = self.request
        return {
            "tests": [*request.arguments, *request.shipped, *request.failures],
            "options": request.options,
            "configuration": configuration.make_key(request.arguments),
            "contents": hash_code(request, self.failures),
            "repeat": self.options.repeat,
            "format": FORMAT,
            "machine": [platform.machine(), platform.python_version()],  # no name of a host, which a pod has but once
        }

    def open_trials(self, key: Mapping[str, Any]) -> AbstractContextManager[TrialFolder]:
        """Open the folder of these tests' trials; the key is all that tells them from others of the same tests."""
        text = json.dumps({**key, **self._tests_key}, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        return TrialFolder.open(self.options.cache_dir / "trials" / name, fresh=self.options.fresh)

    @contextmanager
    def runner(
        self,
        key: Mapping[str, Any],
        build: Callable[[Lock], Environment] | None = None,
        request: TrialRequest | None = None,
    ) -> Iterator[TrialRunner]:
        """Make what tries the candidates of this request, with what is known of them from before.

        Args:
            key: As of ``open_trials``.
            build: What builds the environment of a lock, where it is not the usual one.
            request: The tests, where they are not run from where they were named.
        """
        with self.open_trials(key) as folder:
            self.progress.report_known(len(folder.trials))
            limits = {"repeat": self.options.repeat, "timeout": self.options.timeout}
            yield TrialRunner(
                build or self.environments.build, folder, request or self.request, self.progress, **limits
            )


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
    except (RequestError, LockError, RecordError, GitError, OSError) as error:
        progress.set_activity("")
        print(f"rlregress {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as end:
        progress.report_stop(["rlregress", *options.arguments])
        return end.exit_code if isinstance(end, Ended) else 130
    return answer.exit_code


def list_tests(options: argparse.Namespace, named: Sequence[str]) -> list[str]:
    """List the tests that were named, and the one that rehearses the command behind ``--``.

    Raises:
        RequestError: There is no such program.
    """
    if not options.behind:
        return [*named]
    from pytest_rlregress.trials import rehearsal  # imports pytest

    return [*named, str(rehearsal.write_test(options.behind, options.cache_dir / "rehearsals"))]


@contextmanager
def open_context(options: argparse.Namespace, tests: Sequence[str], progress: Progress) -> Iterator[TrialContext]:
    """Make the context of trials of these tests: documented failures, files, folders and node ids.

    Raises:
        RequestError: There is no such test, pip's or uv's configuration cannot be read, or uv is not installed.
        CatalogueError: There is no such failure.
    """
    known = catalogue.load([catalogue.SHIPPED, *options.scenarios])
    request = _make_request(tests, options, known)
    environments = Environments(
        options.cache_dir / "environments",
        settings=read_settings(os.environ),
        offline=options.no_network,
    )
    try:
        yield TrialContext(options, known, request, progress, environments)
    finally:
        environments.close()


def _make_request(tests: Sequence[str], options: argparse.Namespace, known: catalogue.Catalogue) -> TrialRequest:
    try:
        for_pytest = shlex.split(options.pytest)
    except ValueError as error:
        raise RequestError(f"--pytest {options.pytest!r} isn't a list of options: {error}") from None
    given, shipped, failures = [], [], []
    for test in tests:
        file = _find_file(test)
        if file.exists():
            given.append(test)
        elif (catalogue.SHIPPED / file).exists():
            shipped.append(test)
        elif "::" in test or test.endswith(".py"):
            raise RequestError(f"no such test: {test}: there is no file {file}")
        else:
            failures.append(known.find(test, f"rlregress {options.command}").id)
    added = configuration.read_options(given)
    if added.left:
        words = shlex.join(added.left)
        print(f"not taken from addopts and PYTEST_ADDOPTS: {words}; --pytest gives a trial options", file=sys.stderr)
    own = os.pathsep.join(str(folder.resolve()) for folder in options.scenarios)
    more = [f"--hw={options.hw}"] if options.hw else []
    more += ["-o", f"rlregress_scenarios={own}"] if own else []
    more += for_pytest
    if failures or any("::" in test for test in tests):
        more.append("--rl-long")  # what is asked for by name is to run, however long it takes
    return TrialRequest(tuple(given), tuple(shipped), tuple(failures), options=(*added.taken, *more))


def refuse_shadowed(packages: Collection[str]) -> None:
    """Refuse to try releases of packages that PYTHONPATH has too: its code would be tried instead, each time.

    Raises:
        RequestError: It has one.
    """
    modules = {name.replace("-", "_"): name for name in packages}
    for module, owners in metadata.packages_distributions().items():
        for name in {str(canonicalize_name(owner)) for owner in owners}.intersection(packages):
            if module not in _NOBODYS_MODULES:
                modules[module] = name
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        for module, name in modules.items():
            if Path(folder, module).is_dir() or Path(folder, f"{module}.py").exists():
                raise RequestError(
                    f"{module} would be imported from {folder}, which is on PYTHONPATH, and never from a release "
                    f"of {name}: take that folder off PYTHONPATH"
                )


def hash_code(request: TrialRequest, known: catalogue.Catalogue) -> str:
    """Hash the tests, the code beside them and the user's projects: what was tried with other code says nothing."""
    paths = [_find_file(test) for test in request.arguments]
    paths += [catalogue.SHIPPED / _find_file(test) for test in request.shipped]
    paths += [known[failure].folder.parent for failure in request.failures]
    if not paths:
        paths = sorted({failure.folder.parent for failure in known.values()})
    files: set[Path] = set()
    for path in map(Path.absolute, paths):
        files |= {folder / "conftest.py" for folder in path.parents}
        if path.is_dir():
            files |= {*_list_code(path)}
        else:  # a test's helpers are beside it, in a folder there, or in its area
            files |= {*catalogue.area_of(path).glob("*.py"), *path.parent.glob("*.py"), *path.parent.glob("*/*.py")}
    for line in locks.installed().lines.values():
        if line.startswith("-e "):
            files |= {*_list_code(Path(line.removeprefix("-e ")))}
    contents = {os.path.relpath(file): file.read_bytes() for file in files if file.is_file()}
    parts = (part for name in sorted(contents) for part in (name.encode(), contents[name]))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _list_code(folder: Path) -> Iterator[Path]:
    """List the files of Python in a folder and below, without hidden folders and environments."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and not Path(place, name, "pyvenv.cfg").exists()]
        yield from (Path(place, name) for name in names if name.endswith(".py"))


def _find_file(test: str) -> Path:
    return Path(test.partition("::")[0])
