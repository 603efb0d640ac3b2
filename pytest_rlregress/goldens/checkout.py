"""Check that goldens are written into a clean checkout, so that each can name its commit."""

from __future__ import annotations

from pathlib import Path

from pytest_rlregress.util.git import GitError, git, run_git

ELSEWHERE = "name a folder of a checkout in ini rlregress_goldens"
_SHOWN = 5


class UncleanCheckout(Exception):
    """A folder that no golden may be written to: the message says why and what to do."""


def commit_for(folder: Path, shipped: Path) -> str:
    """Return the commit of the checkout that goldens are to be written to.

    Args:
        folder: Where to; it need not be there yet.
        shipped: The package's own goldens; that folder is part of a checkout or it is an installed package's.

    Raises:
        UncleanCheckout: It is in no checkout, git ignores it, or a tracked file other than a golden is changed.
    """
    folder, shipped = folder.resolve(), shipped.resolve()
    there = next(one for one in (folder, *folder.parents) if one.is_dir())
    try:
        top = Path(git(there, "rev-parse", "--show-toplevel"))
        commit = git(top, "rev-parse", "HEAD")
        changed = [top / name for name in git(top, "diff", "--name-only", "-z", "HEAD").split("\0") if name]
    except GitError:
        raise UncleanCheckout(f"{folder} is in no git checkout that has a commit: {ELSEWHERE}") from None
    if folder == shipped and not git(top, "ls-files", str(shipped.parent)):
        raise UncleanCheckout(f"{folder} is that of an installed package, which a recording would change: {ELSEWHERE}")
    if run_git(top, "check-ignore", "--quiet", str(folder)).returncode == 0:
        raise UncleanCheckout(f"{folder} is ignored by git, so that no golden there would be committed: {ELSEWHERE}")
    dirty = [str(path.relative_to(top)) for path in changed if path.parent != folder]
    if dirty:
        more = f" and {len(dirty) - _SHOWN} more" if len(dirty) > _SHOWN else ""
        raise UncleanCheckout(
            f"{top} is not clean, so that no commit would say what was recorded: {', '.join(dirty[:_SHOWN])}{more} "
            "changed. Commit or stash that first"
        )
    return commit
