"""Remedies for runs that start in another environment than was meant: interpreters, and clusters that are gone."""

from __future__ import annotations

import ast
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["module_not_found", "stale_ray_address"]

# The first part of a module's name that is nowhere, and where its package is. No module of it is run, and none is
# imported that the folder could hide.
_PROBE = """
import importlib.util, sys
found = missing = None
parts = sys.argv[1].split(".")
for count in range(1, len(parts) + 1):
    name = ".".join(parts[:count])
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # below a module that isn't a package
        spec = None
    if not spec:
        missing = name
        break
    found = found or spec.origin or next(iter(spec.submodule_search_locations))
    if count < len(parts):
        sys.modules[name] = importlib.util.module_from_spec(spec)
print([missing, found])
"""
_SECONDS = 60.0


def module_not_found(
    interpreter: str, module: str, environ: Mapping[str, str], folder: str | os.PathLike[str] = "."
) -> str | None:
    """Say why ``interpreter -m module`` finds no such module; None where it finds it.

    The interpreter is run, and imports nothing.

    Args:
        interpreter: As the launch script has it: a path, or a name that is looked for on ``environ``'s PATH.
        module: Dotted: ``verl.trainer.main_ppo``.
        environ: What the run is started with.
        folder: Where it is started, which comes first on its path of modules.

    Returns:
        A sentence that names the interpreter and what it doesn't have, and the package that hides an installed one.
    """
    python = shutil.which(interpreter, path=environ.get("PATH", os.defpath))
    if not python:
        return f"there is no interpreter {interpreter}"
    # With -I neither PYTHONPATH nor the folder counts.
    missing, found = _probe([python, "-c"], module, environ, folder)
    if not missing:
        return None
    alone, _ = _probe([python, "-I", "-c"], module, environ, folder)
    if found and not alone:
        return f"{found} has no {missing}, and hides the package that {python} has installed"
    return f"{python} has no module {missing}"


def _probe(
    command: list[str], module: str, environ: Mapping[str, str], folder: str | os.PathLike[str]
) -> tuple[str | None, str | None]:
    """Return the first part of a module's name that is not found, and where its package is."""
    done = subprocess.run(
        [*command, _PROBE, module],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    if done.returncode:
        return module, None
    missing, found = ast.literal_eval(done.stdout.splitlines()[-1])
    return missing, found


def stale_ray_address(environ: Mapping[str, str]) -> str | None:
    """Find the address of a cluster that ``ray.init()`` will join and where nobody answers; None if it won't fail so.

    Ray takes ``RAY_ADDRESS``, else what the last ``ray start`` wrote into ``ray_current_cluster``, which is left behind
    where its processes were killed.

    Args:
        environ: What the run is started with.

    Returns:
        The host and the port, and behind them which of the two says so: ``10.0.0.7:6379, as RAY_ADDRESS says``.
    """
    address, source = environ.get("RAY_ADDRESS", ""), "RAY_ADDRESS"
    if address in ("", "auto"):
        temporary = environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp"
        file = Path(temporary, "ray", "ray_current_cluster")
        address, source = file.read_text().strip() if file.is_file() else "", str(file)
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address)
    if not found:  # "local", or none
        return None
    try:
        socket.create_connection((found[1], int(found[2])), timeout=5).close()
    except OSError:
        return f"{address}, as {source} says"
    return None
