"""Builds environments with uv, for the scripts beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
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


def interpreter(version: str) -> str:
    """Return an interpreter of a version: this one, one on the PATH that runs, or one of pyenv's.

    Raises:
        Unbuildable: There is none here.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [sys.executable, shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for path in filter(None, found):
        done = subprocess.run([path, "--version"], capture_output=True, text=True)
        if done.stdout.startswith(f"Python {version}."):
            return str(path)
    raise Unbuildable(f"no Python {version} here")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
