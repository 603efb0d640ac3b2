"""What a process is started with and may lack: a user's name, a home folder, a working folder that is still there."""

from __future__ import annotations

import getpass
import os
import tempfile
from pathlib import Path


def user_name() -> str:
    """Return the user's name; the id of one without an entry in passwd, as ``docker run --user 12345`` has."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


def home() -> Path | None:
    """Return the user's home folder; None if neither HOME nor passwd names one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def expand(path: str) -> Path:
    """Return a path with its ``~`` replaced; as it is where nobody knows that user's home."""
    return Path(os.path.expanduser(path))


def working_folder() -> Path:
    """Return the working folder; the root folder if the working folder was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


def cache_folder() -> Path:
    """Return the folder for what the package can make again; it need not exist yet.

    Environment ``RLREGRESS_CACHE_DIR``, else the user's own, else one in the temporary folder.
    """
    own, caches, at_home = os.environ.get("RLREGRESS_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"), home()
    if own:
        return Path(own)
    if caches or at_home:
        return Path(caches or f"{at_home}/.cache") / "rlregress"
    folder = Path(tempfile.gettempdir(), f"rlregress-{os.getuid()}")
    try:
        is_ours = folder.lstat().st_uid == os.getuid()
    except OSError:
        is_ours = True
    return folder if is_ours else Path(tempfile.mkdtemp(prefix="rlregress-"))
