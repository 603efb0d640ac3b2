"""Tell what the release that flips a test changes for a run: the lines of ``rlregress moved``."""

from __future__ import annotations

from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_rlregress.commands.bisect.answer import Culprit
from pytest_rlregress.commands.moved.comparison import tell_upgrade


def list_changes(culprit: Culprit, folder: Path, offline: bool) -> tuple[str, ...]:
    """List what the release that flips the test changes for a run, a few lines; none for a package that isn't compared.

    Args:
        culprit: The release, and the one before it.
        folder: The cache.
        offline: Whether only what is cached may be used.
    """
    ends = sorted((Version(culprit.last_good.label), Version(culprit.first_bad.label)))
    older, newer = (end.public for end in ends)
    return () if older == newer else tuple(tell_upgrade(canonicalize_name(culprit.name), older, newer, folder, offline))
