"""Bisect the commits of a checkout: each in a worktree of its own, installed into one environment."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tomllib
from collections.abc import Generator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.bisect.answer import Answer
from pytest_rlregress.commands.bisect.follow import FollowedTest, OrderedCandidates, find_first_bad
from pytest_rlregress.commands.bisect.releases import (
    Found,
    Needs,
    build_command,
    find_answer,
    find_needs,
    select_contents,
)
from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.environment import Environment, Environments
from pytest_rlregress.environments.uv import Unbuildable
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock, LockError, project_name
from pytest_rlregress.trials.context import TrialContext
from pytest_rlregress.trials.pytest_run import TrialRequest
from pytest_rlregress.trials.trial import Candidate
from pytest_rlregress.util import files
from pytest_rlregress.util.git import GitError, git

_BUILD_FILES = ("pyproject.toml", "setup.py", "setup.cfg")


def bisect_commits(context: TrialContext) -> Answer:
    """Find which commit of a checkout, between two revisions, made the test fail.

    Raises:
        RequestError: No checkout, an unknown revision, …
    """
    options = context.options
    top, commits, repaired = find_commits(options.repo, options.revisions)
    project = options.repo.resolve().relative_to(top)
    with open_worktree(top, options.cache_dir / "worktrees", commits[0].id) as path:
        try:
            name = project_name(path / project)
        except LockError:  # none that its files say
            name = canonicalize_name(options.repo.resolve().name)

        # It is not known what a project needs that is not installed here.
        held = select_contents(name, find_needs(context) if name in locks.installed().lines else Needs())
        builder = CommitBuilder(context.environments, top, path, path / project, name, held.lock)
        candidates = tuple(map(builder.candidate, commits))
        among = OrderedCandidates(name, candidates, repaired)
        ends = good, bad = candidates[0], candidates[-1]

        def find(followed: FollowedTest) -> Found:
            culprit = find_first_bad(among, followed)
            last, first = culprit.last_good.label, culprit.first_bad.label
            culprit = replace(culprit, details=list_details(path, first))
            return Found((culprit,), build_command(context, revisions=f"{last}..{first}"))

        key = {"checkout": str(top), "good": good.label, "bad": bad.label, "held": held.lock.digest}
        request = builder.move_request(context.request)
        moved = request != context.request or Path.cwd().is_relative_to(top)
        # So pytest finds the commit's ini file, and by its ``pythonpath`` the commit's code.
        with chdir(path / project if moved else Path.cwd()):
            return find_answer(context, held, ends, key, find, builder.build, request)


class Commit(NamedTuple):
    """A commit on the way from one revision to another."""

    id: str
    day: str  # of its author, in ISO form
    subject: str


def find_commits(folder: Path, revisions: str) -> tuple[Path, list[Commit], bool]:
    """Find the commits from the good to the bad one of ``GOODREV..BADREV``, of a merge only the side merged into.

    Returns:
        The top of the checkout that a folder is in; the commits, the good end first; whether that is the newer one.

    Raises:
        RequestError: There is no such checkout, no git, or no such pair of revisions on one branch.
    """
    if not folder.is_dir():
        raise RequestError(f"--repo {folder}: no such folder")
    try:
        top = Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except GitError as error:
        if shutil.which("git") is None:
            raise RequestError(f"{error}: --revisions needs it") from None
        raise RequestError(f"--repo {folder}: no git checkout with files ({error})") from None
    good, dots, bad = revisions.partition("..")
    if not (good and dots and bad) or good.startswith("-") or bad.startswith((".", "-")) or ".." in bad:
        raise RequestError(f"--revisions {revisions}: not of the form GOODREV..BADREV, such as v1.0..main")
    ends = [_find_commit(top, revision) for revision in (good, bad)]
    if ends[0] == ends[1]:
        raise RequestError(f"--revisions {revisions}: both are {ends[0][:12]}, so that nothing changed between them")
    try:
        base = git(top, "merge-base", *ends)
    except GitError:
        shallow = _hint_shallow(top)
        raise RequestError(f"--revisions {revisions}: they have no common history in {top}{shallow}") from None
    if base not in ends:
        raise RequestError(
            f"--revisions {revisions}: they are on two branches, which come from {base[:12]}. If the test is good "
            f"there, ask with {base[:12]}..{bad}"
        )
    newer = ends[1 - ends.index(base)]
    lines = [
        *git(top, "log", "--max-count=1", "--format=%H %as %s", base).splitlines(),
        *git(top, "log", "--first-parent", "--reverse", "--format=%H %as %s", f"{base}..{newer}").splitlines(),
    ]
    commits, repaired = [Commit(*line.split(" ", 2)) for line in lines], base == ends[1]
    return top, commits[::-1] if repaired else commits, repaired


def _find_commit(top: Path, revision: str) -> str:
    try:
        return git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except GitError:
        raise RequestError(f"--revisions: {top} has no revision {revision!r}{_hint_shallow(top)}") from None


def _hint_shallow(top: Path) -> str:
    shallow = git(top, "rev-parse", "--is-shallow-repository") == "true"
    return "; it is a shallow clone: git fetch --unshallow gets the rest of its history" if shallow else ""


def list_details(top: Path, at: str) -> tuple[tuple[str, str], ...]:
    """List what else is known of a commit: what it changed, of a merge what it brought to the side merged into."""
    show = ("show", "--format=", "--no-ext-diff", "--no-color", "-m", "--first-parent")
    merged = git(top, "rev-list", "--parents", "--max-count=1", at).count(" ") > 1
    return (
        ("files changed", git(top, *show, "--stat=100", "--stat-count=30", at)),
        ("requirements changed", git(top, *show, "--unified=0", at, "--", *_BUILD_FILES, "requirements*.txt")),
        ("a merge, and how to go into it", f"--revisions {at}^1..{at}^2" if merged else ""),
    )


@contextmanager
def open_worktree(top: Path, folder: Path, commit: str) -> Generator[Path]:
    """Open a worktree of a checkout below ``folder``, at first at ``commit``; it is removed afterwards.

    Its path is the same every time, so that what was built for it can be reused. What a killed process left of it is
    removed first.

    Raises:
        RequestError: Another process has it.
    """
    name = f"{top.name}-{hashlib.sha256(os.fsencode(top)).hexdigest()[:8]}"
    path = folder.resolve() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{name}.lock"), "w") as lock:
        if not files.lock(lock.fileno()):
            raise RequestError(f"{top}: another bisect of it is running; wait for its end or stop it")
        _remove(top, path)
        try:
            git(top, "worktree", "add", "--detach", str(path), commit)
            yield path
        finally:
            _remove(top, path)


def _remove(top: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    # Not ``prune``: it would also forget the user's own worktrees on a drive that is not mounted just now.
    # Twice `--force`: one whose making was killed is locked.
    with suppress(GitError):
        git(top, "worktree", "remove", "--force", "--force", str(path))


def check_out(path: Path, commit: str) -> None:
    """Check out a commit in a worktree, without what a run left that could be taken for part of it.

    What git ignores stays, such as what a build made, but not bytecode: Python takes it for the source of another
    revision where that has the same size and second.
    """
    git(path, "reset", "--hard", "--quiet")
    git(path, "clean", "--force", "-d", "--quiet")
    for folder in path.rglob("__pycache__"):
        shutil.rmtree(folder, ignore_errors=True)
    git(path, "checkout", "--quiet", "--detach", commit)


@dataclass(frozen=True)
class CommitBuilder:
    """Builds environments of commits."""

    environments: Environments
    top: Path  # the user's checkout
    path: Path  # the worktree
    project: Path  # the project's folder in it
    name: str  # the project's package
    held: Lock

    def candidate(self, commit: Commit) -> Candidate:
        """Make the candidate of a commit."""
        lock = self.held.having({self.name: f"{self.name} @ git+{self.top.as_uri()}@{commit.id}"})
        short = commit.id[:12]
        label, subjects = f"{self.name} {short}", frozenset({self.name})
        return Candidate(label, lambda: lock, self.held, subjects, short, commit.day, commit.subject)

    def _move(self, path: Path) -> Path:
        """Return where a path of the checkout is in the worktree; any other path as it is."""
        return self.path / path.relative_to(self.top) if path.is_relative_to(self.top) else path

    def move_request(self, request: TrialRequest) -> TrialRequest:
        """Take the tests of the checkout as they are in the worktree."""
        tests = [argument.partition("::") for argument in request.arguments]
        arguments = tuple(f"{self._move(Path(file).resolve())}{colons}{test}" for file, colons, test in tests)
        if not any(argument.startswith(f"{self.path}{os.sep}") for argument in arguments):
            return request
        return replace(request, arguments=arguments, options=(*request.options, f"--rootdir={self.project}"))

    def build(self, lock: Lock) -> Environment:
        """Check out the commit of a candidate's lock; returns the environment that has it installed.

        Raises:
            Unbuildable: It cannot be installed at that commit, or something else would be imported.
            RequestError: The disk is full.
        """
        check_out(self.path, lock.lines[self.name].rpartition("@")[2])
        # What else is installed editable from the checkout is so from the worktree.
        editable = {name: Path(line[3:]) for name, line in self.held.lines.items() if line.startswith("-e ")}
        editable = {name: self._move(at) for name, at in editable.items()}
        installable = is_installable(self.project)
        if installable:
            editable[self.name] = self.project
        held = self.held.having({name: f"-e {at}" for name, at in editable.items()})
        environment = self.environments.build(held)
        if not installable:
            return environment
        if environment.reused:  # what it has of the project was installed at another commit
            into = ("--python", str(environment.python), "--no-deps", "--reinstall", "--editable", str(self.project))
            self.environments.installer.pip("install", *into, files={})
        instead = find_shadowing_import(environment.python, self.project, self.name)
        if instead:
            raise Unbuildable(instead, instead)
        return environment


def is_installable(folder: Path) -> bool:
    """Return whether a folder has a build: code of one that has none is found by ini ``pythonpath``."""
    with suppress(OSError, ValueError):
        built = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        if {"project", "build-system"} & built.keys():
            return True
    return any((folder / name).is_file() for name in ("setup.py", "setup.cfg"))


def find_shadowing_import(python: Path, project: Path, package: str) -> str | None:
    """Say what would be imported instead of a project's module of the project's name; None where that is it."""
    module = package.replace("-", "_")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    code = "import sys; from importlib.util import find_spec; print(getattr(find_spec(sys.argv[1]), 'origin', 0) or '')"
    command = [str(python), "-P", "-c", code, module]
    origin = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()
    if not origin or Path(origin).is_relative_to(project):
        return None
    return f"{module} would be imported from {origin}, not from the commit's files in {project}: see PYTHONPATH"
