"""Bisect the commits of a checkout, installed one after the other into one environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.bisect import follow, worktree
from pytest_rlregress.commands.bisect.answer import Answer, Endpoint, NotFound
from pytest_rlregress.commands.bisect.build_answer import build_command, build_found, build_not_found
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer, OrderedCandidates, follow_test
from pytest_rlregress.commands.bisect.needs import (
    EnvironmentContents,
    Needs,
    check_nothing_lacks,
    find_needs,
    select_contents,
)
from pytest_rlregress.commands.bisect.worktree import BUILD_FILES, Checkout, Commit
from pytest_rlregress.commands.environments import RequestError
from pytest_rlregress.commands.environments.environment import Environment
from pytest_rlregress.commands.environments.uv import Installer, Unbuildable
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.pytest_run import TrialRequest
from pytest_rlregress.commands.trials.runner import Candidate
from pytest_rlregress.commands.trials.trial import State
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock, LockError, project_name
from pytest_rlregress.util.git import git


def bisect_commits(context: TrialContext) -> Answer:
    """Find which commit of a checkout, between two revisions, made the test fail.

    Raises:
        GitError: No checkout, an unknown revision, …
        LacksPackages: The tests missed some at an end that are installed here.
    """
    with open_commits(context) as commits:
        ends = good, bad = commits.candidate(commits.good), commits.candidate(commits.bad)
        held = commits.held
        key = {"checkout": str(commits.top), "good": good.label, "bad": bad.label, "held": held.lock.digest}
        with context.runner(key, commits, commits.request) as runner, commits.working_folder():
            try:
                followed = follow_test(good, bad, runner, context.progress)
                among = list_candidates(commits, followed)
                culprit = follow.find_first_bad(among, followed)
            except NoAnswer as error:
                check_nothing_lacks(context, held, runner.trials.values())
                return build_not_found(context, error.why, ends, runner, held)
            last, first = culprit.last_good, culprit.first_bad
            ends_now = f"{last.label}..{first.label}"
            return build_found(
                context,
                followed,
                held,
                build_command(context, revisions=ends_now),
                culprits=[replace(culprit, details=list_details(commits, first.label))],
                edge=(among.find(last), among.find(first)),
                days=(commits.good.day, commits.bad.day),
            )


def list_candidates(commits: Commits, followed: FollowedTest) -> OrderedCandidates:
    """List the commits from the good end to the bad end, of a merge only the side merged into; both ends were tried.

    Where the ends are on two branches, the commit that both come from is tried first.

    Raises:
        NoAnswer: That one is bad.
    """
    good, bad = commits.good, commits.bad
    base = worktree.find_merge_base(commits.path, good, bad)
    repaired, apart = base == bad, base not in (good, bad)
    older, newer = (bad, good) if repaired else (base, bad)
    line = [older, *worktree.list_commits(commits.path, f"{older.id}..{newer.id}")]
    if apart:
        line.insert(0, good)
        if followed.try_(commits.candidate(base)).state is State.BAD:
            older_label, repaired_label = (commits.candidate(one).label for one in (base, good))
            reason = (
                f"{older_label}, which both ends come from, is bad too: the failure was repaired on the way to "
                f"{repaired_label}"
            )
            raise NoAnswer(NotFound("not monotone", older_label, repaired_label, reason))
    if repaired:
        line.reverse()
    return OrderedCandidates(
        commits.name,
        tuple(map(commits.candidate, line)),
        tuple(Endpoint(one.short, one.day, title=one.subject) for one in line),
        repaired,
    )


def list_details(commits: Commits, at: str) -> tuple[tuple[str, str], ...]:
    """List what else is known of the commit where the test flips."""
    path = commits.path
    merged = git(path, "rev-list", "--parents", "--max-count=1", at).count(" ") > 1
    return (
        ("files changed", worktree.show_changes(path, at, "--stat=100", "--stat-count=30").strip("\n")),
        (
            "requirements changed",
            worktree.show_changes(path, at, "--unified=0", "--", *BUILD_FILES, "requirements*.txt"),
        ),
        ("a merge, and how to go into it", f"--revisions {at}^1..{at}^2" if merged else ""),
    )


class Commits:
    """The commits of a checkout as candidates. A runner takes this for its environments.

    Attributes:
        good: The good end.
        bad: The bad end.
        path: The worktree.
        project: The project's folder in it.
        request: The tests, as they are run: those in the checkout as they are in the worktree.
        top: The user's checkout.
        name: The project's package.
        held: What is held fixed.
    """

    def __init__(self, context: TrialContext, found: Checkout, path: Path, ends: tuple[Commit, Commit]) -> None:
        (self.good, self.bad), self.path, self.top = ends, path, found.top
        self._environments = context.environments
        self.project = path / found.project
        self._given, self.request = context.request, self._move_request(context.request)
        self._installable = is_installable(self.project)
        self.name = (
            find_project_name(self.project, self._environments.installer)
            if self._installable
            else canonicalize_name((found.top / found.project).name)
        )
        self.held = _select_contents(context, self.name)
        own = {self.name: f"-e {self.project}"} if self._installable else {}
        self._lock = self.held.lock.having({**self._siblings(), **own})

    def _siblings(self) -> dict[str, str]:
        """List what is installed editable from the checkout, from the worktree instead."""
        editables = {name: Path(line[3:]) for name, line in self.held.lock.lines.items() if line.startswith("-e ")}
        return {name: f"-e {self._in_worktree(at)}" for name, at in editables.items() if at.is_relative_to(self.top)}

    def _in_worktree(self, path: Path) -> Path:
        return self.path / path.relative_to(self.top)

    def candidate(self, commit: Commit) -> Candidate:
        """Make the candidate of a commit."""
        base = self.held.lock
        lock = base.having({self.name: f"{self.name} @ git+{self.top.as_uri()}@{commit.id}"})
        return Candidate(f"{self.name} {commit.short}", lambda: lock, base, frozenset({self.name}))

    def _move_request(self, request: TrialRequest) -> TrialRequest:
        arguments = tuple(map(self._move_argument, request.arguments))
        if not any(argument.startswith(f"{self.path}{os.sep}") for argument in arguments):
            return request
        return replace(request, arguments=arguments, options=(*request.options, f"--rootdir={self.project}"))

    def _move_argument(self, argument: str) -> str:
        file, colons, test = argument.partition("::")
        path = Path(file).resolve()
        return f"{self._in_worktree(path) if path.is_relative_to(self.top) else path}{colons}{test}"

    @contextmanager
    def working_folder(self) -> Generator[None]:
        """Run tests of the checkout from the project's folder in the worktree, others from where this folder is there.

        So pytest finds the commit's ini file, and by its ``pythonpath`` the commit's code.
        """
        here = Path.cwd()
        try:
            if self.request != self._given:
                os.chdir(self.project)
            elif here.is_relative_to(self.top) and self._in_worktree(here).is_dir():
                os.chdir(self._in_worktree(here))
            yield
        finally:
            os.chdir(here)

    def build(self, lock: Lock) -> Environment:
        """Check out the commit of a candidate's lock; returns the environment that has it installed.

        Raises:
            Unbuildable: It cannot be installed at that commit, or something else would be imported.
            RequestError: The disk is full.
        """
        worktree.check_out(self.path, lock.lines[self.name].rpartition("@")[2])
        environment = self._environments.build(self._lock)
        if not self._installable:
            return environment
        if environment.reused:  # what it has of the project was installed at another commit
            into = ("--python", str(environment.python), "--no-deps", "--reinstall", "--editable", str(self.project))
            self._environments.installer.pip("install", *into, files={})
        instead = find_shadowing_import(environment.python, self.project, self.name, self.top)
        if instead:
            raise Unbuildable(instead, instead)
        return environment


@contextmanager
def open_commits(context: TrialContext) -> Generator[Commits]:
    """Open a worktree for the ends in a checkout, which itself is not touched.

    Raises:
        RequestError: No checkout, an unknown revision, …: one sentence.
    """
    options = context.options
    found = worktree.find_checkout(options.repo)
    ends = worktree.find_ends(found, options.revisions)
    with worktree.open_worktree(found, options.cache_dir / "worktrees", ends[0].id) as path:
        yield Commits(context, found, path, ends)


def _select_contents(context: TrialContext, name: str) -> EnvironmentContents:
    """Select what is held fixed; all of this environment where it is not known what the project itself needs."""
    needs = find_needs(context) if name in locks.installed().lines else Needs()
    return select_contents(name, needs, context.options.with_editable)


def is_installable(folder: Path) -> bool:
    """Return whether a folder has a build: code of one that has none is found by ini ``pythonpath``."""
    with suppress(OSError, ValueError):
        built = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        if {"project", "build-system"} & built.keys():
            return True
    return any((folder / name).is_file() for name in ("setup.py", "setup.cfg"))


def find_project_name(folder: Path, installer: Installer) -> str:
    """Find the name of the project in a folder: from its pyproject.toml, else from its build, which uv asks.

    Raises:
        RequestError: The build does not say it.
    """
    with suppress(LockError):
        return project_name(folder)
    style = ("--no-deps", "--python", sys.executable, "--format", "pylock.toml", "--output-file", "pylock.release.toml")
    files = {"requirements.in": f"-e {folder}"}
    try:
        written, _ = installer.pip("compile", "requirements.in", *style, files=files)
    except Unbuildable as error:
        raise RequestError(f"--repo: {', '.join(BUILD_FILES)} do not say the project's name: {error}") from None
    (project,) = tomllib.loads(written)["packages"]
    return canonicalize_name(project["name"])


# Where a Python finds what could be imported by these names.
_ORIGINS = """
import sys
if sys.path[0] == "":
    del sys.path[0]  # of `-c`; a run has no such entry
import importlib.util, json
found = {}
for name in json.load(sys.stdin):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        continue
    if spec is not None:
        found[name] = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
json.dump(found, sys.stdout)
"""


def find_shadowing_import(python: Path, project: Path, package: str, theirs: Path) -> str | None:
    """Say what would be imported instead of a project's own files; None where those are.

    Args:
        python: Of an environment that has the project installed.
        project: The folder that the code is to be imported from.
        package: The project's name.
        theirs: A folder that nothing of the same name is to be imported from: the user's checkout.
    """
    files = map(PurePosixPath, git(project, "ls-files", "--", "*.py").splitlines())
    names = sorted({part for file in files for part in file.with_suffix("").parts if part.isidentifier()})
    clean, found = _find_origins(python, names, "-I"), _find_origins(python, names)
    own = {name: place for name, place in clean.items() if Path(place).is_relative_to(project)}
    if not own:
        return f"{package} installed editable at this commit, but nothing is imported from its files"
    main = package.replace("-", "_")
    for name, place in own.items():
        instead = Path(found.get(name, "nowhere"))
        counts = instead.is_relative_to(theirs) or name == main or main not in own
        if counts and str(instead) != place:
            return f"{name} would be imported from {instead}, not from the commit's {place}: see PYTHONPATH"
    return None


def _find_origins(python: Path, names: list[str], *options: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    command = [str(python), *options, "-c", _ORIGINS]
    asked = subprocess.run(command, input=json.dumps(names), env=environ, capture_output=True, text=True, check=True)
    return {name: place for name, place in json.loads(asked.stdout).items() if place}
