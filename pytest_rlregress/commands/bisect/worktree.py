"""Run git in a worktree of its own: the user's checkout is never touched."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.commands.environments import RequestError
from pytest_rlregress.util import files
from pytest_rlregress.util.git import GitError, git

#: What an installation is made from.
BUILD_FILES = ("pyproject.toml", "setup.py", "setup.cfg")


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


def find_checkout(folder: Path) -> Checkout:
    """Find the checkout that a folder is in.

    Raises:
        RequestError: The folder isn't in a checkout, or git is missing.
    """
    if not folder.is_dir():
        raise RequestError(f"--repo {folder}: no such folder")
    try:
        top = Path(git(folder, "rev-parse", "--show-toplevel"))
    except GitError as error:
        if shutil.which("git") is None:
            raise RequestError(f"{error}: --revisions needs it") from None
        raise RequestError(f"--repo {folder}: no git checkout with files ({error})") from None
    return Checkout(top, folder.resolve().relative_to(top.resolve()))


def find_ends(found: Checkout, revisions: str) -> tuple[Commit, Commit]:
    """Find the good and the bad commit of ``GOODREV..BADREV``.

    Raises:
        RequestError: It is not of that form, or names an unknown revision, one commit twice, or two without common
            history.
    """
    good, dots, bad = revisions.partition("..")
    if not (good and dots and bad) or good.startswith("-") or bad.startswith((".", "-")) or ".." in bad:
        raise RequestError(f"--revisions {revisions}: not of the form GOODREV..BADREV, such as v1.0..main")
    first, second = _find_commit(found.top, good), _find_commit(found.top, bad)
    if first == second:
        raise RequestError(f"--revisions {revisions}: both are {first.short}, so that nothing changed between them")
    find_merge_base(found.top, first, second)
    return first, second


def _find_commit(top: Path, revision: str) -> Commit:
    try:
        git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except GitError:
        raise RequestError(f"--revisions: {top} has no revision {revision!r}{_hint_shallow(top)}") from None
    (found,) = list_commits(top, "--max-count=1", revision)
    return found


def _hint_shallow(top: Path) -> str:
    shallow = git(top, "rev-parse", "--is-shallow-repository") == "true"
    return "; it is a shallow clone: git fetch --unshallow gets the rest of its history" if shallow else ""


def find_merge_base(top: Path, one: Commit, other: Commit) -> Commit:
    """Find the commit that two others come from: one of these where it is an ancestor of the other.

    Raises:
        RequestError: There is none.
    """
    try:
        return _find_commit(top, git(top, "merge-base", one.id, other.id))
    except GitError:
        raise RequestError(
            f"--revisions {one.short}..{other.short}: they have no common history in {top}{_hint_shallow(top)}"
        ) from None


def list_commits(top: Path, *which: str) -> list[Commit]:
    """List commits, the oldest first, as ``git log`` is asked for them; of a merge only the side merged into."""
    lines = git(top, "log", "--first-parent", "--reverse", "--format=%H %as %s", *which).splitlines()
    words = (line.split(" ", 2) for line in lines)
    return [Commit(one, subject, day) for one, day, subject in words]


def show_changes(top: Path, commit: str, *what: str) -> str:
    """Show what a commit changed, as ``git show`` is asked; of a merge what it brought to the side merged into."""
    style = ("--format=", "--no-ext-diff", "--no-color", "-m", "--first-parent")
    return git(top, "show", *style, commit, *what)


@contextmanager
def open_worktree(found: Checkout, folder: Path, commit: str) -> Generator[Path]:
    """Open a worktree of the checkout below ``folder``, at first at ``commit``; it is removed afterwards.

    Its path is the same every time, so that what was built for it can be reused. What a killed process left of it is
    removed first.

    Raises:
        RequestError: Another process has it, or git cannot make it.
    """
    name = f"{found.top.name}-{hashlib.sha256(os.fsencode(found.top)).hexdigest()[:8]}"
    path = folder.resolve() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{name}.lock"), "w") as lock:
        if not files.lock(lock.fileno()):
            raise RequestError(f"{found.top}: another bisect of it is running; wait for its end or stop it")
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
