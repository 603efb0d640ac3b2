"""The commits of a checkout as candidates, installed one after the other into one environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from pytest_rlregress.bisect.checkout import editable, worktree
from pytest_rlregress.bisect.checkout.worktree import Checkout, Commit
from pytest_rlregress.environments.contents import EnvironmentContents
from pytest_rlregress.environments.environment import Environment
from pytest_rlregress.environments.uv import Installer, Unbuildable
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.trials.pytest_run import TrialRequest
from pytest_rlregress.trials.runner import Builder, Candidate, TrialRunner
from pytest_rlregress.util.git import git


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

    def __init__(
        self,
        found: Checkout,
        path: Path,
        ends: tuple[Commit, Commit],
        request: TrialRequest,
        held: Callable[[str], EnvironmentContents],
        environments: Builder,
        installer: Installer,
    ) -> None:
        (self.good, self.bad), self.path, self.top = ends, path, found.top
        self._environments, self._installer = environments, installer
        self.project = path / found.project
        self._given, self.request = request, self._move_request(request)
        self._installable = editable.is_installable(self.project)
        self.name = (
            editable.find_project_name(self.project, found.top / found.project, locks.installed())
            if self._installable
            else canonicalize_name((found.top / found.project).name)
        )
        self.held = held(self.name)
        own = {self.name: f"-e {self.project}"} if self._installable else {}
        self._lock = self.held.lock.having({**self._siblings(), **own})
        self._inputs: str | None = None
        self._commits: dict[str, Commit] = {}

    def _siblings(self) -> dict[str, str]:
        """What is installed editable from the checkout, from the worktree instead."""
        editables = {name: Path(line[3:]) for name, line in self.held.lock.lines.items() if line.startswith("-e ")}
        return {name: f"-e {self._in_worktree(at)}" for name, at in editables.items() if at.is_relative_to(self.top)}

    def _in_worktree(self, path: Path) -> Path:
        return self.path / path.relative_to(self.top)

    def candidate(self, commit: Commit) -> Candidate:
        """Make the candidate of a commit."""
        label = f"{self.name} {commit.short}"
        self._commits[label] = commit
        base = self.held.lock
        lock = base.having({self.name: f"{self.name} @ git+{self.top.as_uri()}@{commit.id}"})
        return Candidate(label, lambda: lock, base, frozenset({self.name}))

    def list_tried(self, runner: TrialRunner) -> list[Commit]:
        """List the commits that were tried, in the order of the trying."""
        return [self._commits[label] for label in runner.trials if label in self._commits]

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
            NoSpace: The disk is full.
        """
        worktree.clean(self.path)
        git(self.path, "checkout", "--quiet", "--detach", lock.lines[self.name].rpartition("@")[2])
        environment = self._environments.build(self._lock)
        if not self._installable:
            return environment
        if environment.reused and editable.describe_build(self.project) != self._inputs:
            self._inputs = None
            self._reinstall(environment)
        self._inputs = editable.describe_build(self.project)
        instead = editable.find_shadowing_import(environment.python, self.project, self.name, self.top)
        if instead:
            raise Unbuildable(instead, instead)
        return environment

    def _reinstall(self, environment: Environment) -> None:
        into = ("--python", str(environment.python), "--no-deps", "--reinstall", "--editable", str(self.project))
        self._installer.pip(f"installing {self.name} of this commit", "install", *into, files={})


@contextmanager
def open_commits(
    repo: Path,
    revisions: str,
    *,
    request: TrialRequest,
    held: Callable[[str], EnvironmentContents],
    environments: Builder,
    installer: Installer,
    folder: Path,
) -> Generator[Commits]:
    """Open a worktree for the revisions ``GOODREV..BADREV`` of a checkout, which itself is not touched.

    Args:
        repo: The folder of the project in its git checkout.
        revisions: The ends.
        request: The tests.
        held: What is held fixed around the package of this name.
        environments: Where the environment is built that all commits are installed into, one after the other.
        installer: Installs a commit there, where that differs from the one before.
        folder: Where the worktree goes.

    Raises:
        WorktreeError: No checkout, an unknown revision, …: one sentence.
    """
    found = worktree.find_checkout(repo)
    ends = worktree.find_ends(found, revisions)
    with worktree.open_worktree(found, folder, ends[0].id) as path:
        yield Commits(found, path, ends, request, held, environments, installer)
