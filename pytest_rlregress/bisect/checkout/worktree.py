"""Run git in a worktree of its own: the user's checkout is never touched."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from pytest_rlregress.util import files
from pytest_rlregress.util.git import GitError, git, reason, run_git

#: What an installation is made from.
BUILD_FILES = ("pyproject.toml", "setup.py", "setup.cfg")

_BISECT_ENDS = (2, 3)  # only skipped commits are left; a merge base is bad


class WorktreeError(GitError):
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
    except GitError as error:
        if shutil.which("git") is None:
            raise WorktreeError(f"{error}: --revisions drives git's own bisect") from None
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
    except GitError:
        raise WorktreeError(
            f"--revisions {revisions}: they have no common history in {found.top}{_hint_shallow(found.top)}"
        ) from None
    return read_commit(found.top, first), read_commit(found.top, second)


def _find_commit(top: Path, revision: str) -> str:
    try:
        return git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except GitError:
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
        if not files.lock(lock.fileno()):
            raise WorktreeError(f"{found.top}: another bisect of it is running; wait for its end or stop it")
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
    with suppress(GitError):
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


def mark_commit(folder: Path, term: str) -> tuple[str, bool]:
    """Mark the checked-out commit in git's bisect; returns what it prints, and whether it cannot go on.

    Raises:
        GitError: It failed.
    """
    done = run_git(folder, "bisect", term)
    if done.returncode not in (0, *_BISECT_ENDS):
        raise GitError(f"git bisect {term}: {reason(done)}")
    return f"{done.stdout}{done.stderr}".strip("\n"), done.returncode != 0
