"""Builds environments with uv, for the scripts beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


class Unbuildable(RuntimeError):
    """An environment that could not be built; the message is what uv said."""


def uv(*arguments: object, find_links: bool = True) -> str:
    """Run uv and return what it prints; with ``find_links`` it looks where pip finds what no index has, too.

    Raises:
        Unbuildable: uv said why.
    """
    found = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    places = os.environ.get("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", "")) if find_links else ""
    environment = {**os.environ, "UV_FIND_LINKS": places}
    done = subprocess.run(
        [found, *map(str, arguments), "--quiet"], cwd=CHECKOUT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise Unbuildable(done.stderr)
    return done.stdout


def make_environment(folder: Path, python: str) -> Path:
    """Make a new environment of a version of Python, also one that only pyenv has; return its interpreter.

    Raises:
        Unbuildable: There is no such Python here.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    uv("venv", "--clear", "--python", next(pyenv.glob(f"versions/{python}.*/bin/python"), python), folder)
    return folder / "bin" / "python"
