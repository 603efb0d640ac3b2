"""Run git in a worktree of its own: the user's checkout is never touched."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

#: What an installation is made from.
BUILD_FILES = ("pyproject.toml", "setup.py", "setup.cfg")

# A hook is the user's, for the user's own checkouts.
_COMMAND = ("git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
_BISECT_ENDS = (2, 3)  # only skipped commits are left; a merge base is bad


class WorktreeError(Exception):
    """Something cannot be done with a checkout: one sentence that says what, and what to do."""


@dataclass(frozen=True)
class Checkout:
    """A project in a git checkout.

    Attributes:
        top: The folder of the checkout.
        project: The project's folder in it: ``.`` for most.
    """

    top: Path
    project: Path


@dataclass(frozen=True)
class Commit:
    """A commit: its id, its subject, and the day of its author in ISO form."""

    id: str
    subject: str
    day: str

    @property
    def short(self) -> str:
        """Enough of its id to tell it in any repository."""
        return self.id[:12]

    def __str__(self) -> str:
        """Its id and its subject."""
        return f"{self.short} {self.subject}"


def find_checkout(folder: Path) -> Checkout:
    """Find the checkout that a folder lies in.

    Raises:
        WorktreeError: It lies in none, or git is missing.
    """
    if not folder.is_dir():
        raise WorktreeError(f"--repo {folder}: no such folder")
    try:
        top = Path(git(folder, "rev-parse", "--show-toplevel"))
    except WorktreeError as error:
        if shutil.which("git") is None:
            raise
        raise WorktreeError(f"--repo {folder}: no git checkout with files ({error})") from None
    return Checkout(top, folder.resolve().relative_to(top.resolve()))


def find_ends(found: Checkout, revisions: str) -> tuple[Commit, Commit]:
    """Find the good and the bad commit of ``GOODREV..BADREV``.

    Raises:
        WorktreeError: It is not of that form, or names an unknown revision, one commit twice, or two without common
            history.
    """
    good, dots, bad = revisions.partition("..")
    if not (good and dots and bad) or good.startswith("-") or bad.startswith((".", "-")) or ".." in bad:
        raise WorktreeError(f"--revisions {revisions}: not of the form GOODREV..BADREV, such as v1.0..main")
    first, second = _find_commit(found.top, good), _find_commit(found.top, bad)
    if first == second:
        raise WorktreeError(f"--revisions {revisions}: both are {first[:12]}, so that nothing changed between them")
    try:
        git(found.top, "merge-base", first, second)
    except WorktreeError:
        raise WorktreeError(
            f"--revisions {revisions}: they have no common history in {found.top}{_hint_shallow(found.top)}"
        ) from None
    return read_commit(found.top, first), read_commit(found.top, second)


def _find_commit(top: Path, revision: str) -> str:
    try:
        return git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except WorktreeError:
        raise WorktreeError(f"--revisions: {top} has no revision {revision!r}{_hint_shallow(top)}") from None


def _hint_shallow(top: Path) -> str:
    shallow = git(top, "rev-parse", "--is-shallow-repository") == "true"
    return "; it is a shallow clone: git fetch --unshallow gets the rest of its history" if shallow else ""


def read_commit(top: Path, commit: str) -> Commit:
    """Read a commit by its id."""
    day, _, subject = git(top, "show", "--no-patch", "--format=%as %s", commit).partition(" ")
    return Commit(commit, subject, day)


def is_ancestor(top: Path, one: str, other: str) -> bool:
    """Whether a commit is among the ancestors of another one."""
    return git(top, "merge-base", one, other) == one


def list_changed_files(top: Path, commit: str) -> str:
    """List the files that a commit changed; for a merge, what it brought to the branch that it was merged into."""
    return _show(top, commit, "--stat=100", "--stat-count=30").strip("\n")


def list_changed_requirements(top: Path, commit: str) -> tuple[str, ...]:
    """List the requirements that a commit took away and added in the files that declare them, as ``-numpy<2``."""
    patch = _show(top, commit, "--unified=0", "--patch", "--", *BUILD_FILES, "requirements*.txt")
    lines = re.findall(r"^([+-])(?!\1\1 )\s*([\"']?)(.+?)\2,?\s*$", patch, re.MULTILINE)
    return tuple(f"{sign}{text}" for sign, quoted, text in lines if _is_requirement(text, bool(quoted)))


def _show(top: Path, commit: str, *what: str) -> str:
    return git(top, "show", "--format=", "--no-ext-diff", "--no-color", "-m", "--first-parent", commit, *what)


def _is_requirement(text: str, quoted: bool) -> bool:
    try:
        found = Requirement(text)
    except InvalidRequirement:
        return False
    return quoted or bool(found.specifier or found.url)  # else a bare word of a program


@contextmanager
def open_worktree(found: Checkout, folder: Path, commit: str) -> Generator[Path]:
    """Open a worktree of the checkout below ``folder``, at first at ``commit``; it is removed afterwards.

    Its path is the same every time, so that what was built for it can be reused. What a killed process left of it is
    removed first.

    Raises:
        WorktreeError: Another process has it, or git cannot make it.
    """
    name = f"{found.top.name}-{hashlib.sha256(os.fsencode(found.top)).hexdigest()[:8]}"
    path = folder.resolve() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorktreeError(f"{found.top}: another bisect of it is running; wait for its end or stop it") from None
        _remove(found.top, path)
        try:
            git(found.top, "worktree", "add", "--detach", str(path), commit)
            yield path
        finally:
            _remove(found.top, path)


def _remove(top: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    # Not ``prune``: it would also forget the user's own worktrees on a drive that is not mounted just now.
    # Twice `--force`: one whose making was killed is locked.
    with suppress(WorktreeError):
        git(top, "worktree", "remove", "--force", "--force", str(path))


def clean(path: Path) -> None:
    """Remove from a worktree what a run left that would be in the way of another revision, or be taken for part of it.

    What git ignores stays, such as what a build made, but not bytecode: Python takes it for the source of another
    revision where that has the same size and second.
    """
    git(path, "reset", "--hard", "--quiet")
    git(path, "clean", "--force", "-d", "--quiet")
    for folder in path.rglob("__pycache__"):
        shutil.rmtree(folder, ignore_errors=True)


def git(folder: Path, *arguments: str) -> str:
    """Run a git command in a folder; returns what it prints.

    Raises:
        WorktreeError: It failed: what it says of that; or there is no git.
    """
    done = _run(folder, arguments, subprocess.PIPE)
    if done.returncode:
        raise WorktreeError(f"git {arguments[0]}: {_reason(done)}")
    return done.stdout.strip("\n")


def mark_commit(folder: Path, term: str) -> tuple[str, bool]:
    """Mark the checked-out commit in git's bisect; returns what it prints, and whether it cannot go on.

    Raises:
        WorktreeError: It failed.
    """
    done = _run(folder, ("bisect", term), subprocess.STDOUT)
    if done.returncode not in (0, *_BISECT_ENDS):
        raise WorktreeError(f"git bisect {term}: {_reason(done)}")
    return done.stdout.strip("\n"), done.returncode != 0


def _run(folder: Path, arguments: Sequence[str], stderr: int) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*_COMMAND, "-C", str(folder), *arguments],
            env=_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise WorktreeError("git was not found on the PATH: --revisions drives git's own bisect") from None


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    return next((line for line in lines if line.startswith(("fatal: ", "error: "))), lines[-1])


def _environ() -> dict[str, str]:
    """Make the variables for git: its words in English, and no other repository than the folder's."""
    return {name: value for name, value in os.environ.items() if name not in _list_repository_variables()} | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
    }


@functools.cache
def _list_repository_variables() -> frozenset[str]:
    """List the variables that point git to one repository: set where this is started from one of its hooks."""
    asked = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
    return frozenset(asked.stdout.split())
