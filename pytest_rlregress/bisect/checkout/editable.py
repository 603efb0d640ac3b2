"""A project that is installed editable: find its name, what its installation depends on, where it is imported from."""

from __future__ import annotations

import ast
import configparser
import contextlib
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from pytest_rlregress.bisect.checkout.worktree import BUILD_FILES, WorktreeError
from pytest_rlregress.stack.locks import Lock, LockError, project_name
from pytest_rlregress.util.git import git

# Where a Python finds what could be imported by these names.
_ORIGINS = """
import sys
if sys.path[0] == "":
    del sys.path[0]  # of `-c`; a run has no such entry
import importlib.util, json
found = {}
for name in json.load(sys.stdin):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        continue
    if spec is not None:
        found[name] = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
json.dump(found, sys.stdout)
"""


def is_installable(folder: Path) -> bool:
    """Return whether a folder has a build: code of one that has none is found by ini ``pythonpath``."""
    with contextlib.suppress(OSError, ValueError):
        built = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        if {"project", "build-system"} & built.keys():
            return True
    return any((folder / name).is_file() for name in ("setup.py", "setup.cfg"))


def find_project_name(folder: Path, installed: Path, lock: Lock) -> str:
    """Find the name of the project in a folder, as its files say it.

    Args:
        folder: Holds it.
        installed: Where it may be installed from already.
        lock: What is installed.

    Raises:
        WorktreeError: They do not say it.
    """
    there = [name for name, line in lock.lines.items() if line == f"-e {installed}"]
    with contextlib.suppress(LockError):
        there.append(project_name(folder))
    found = next(filter(None, [*there, _name_in_setup_cfg(folder), _name_in_setup_py(folder)]), None)
    if found is None:
        raise WorktreeError(
            f"--repo: none of {', '.join(BUILD_FILES)} in {installed} says the project's name; "
            "where one computes it, install the project editable here first"
        )
    return canonicalize_name(found)


def _name_in_setup_cfg(folder: Path) -> str | None:
    found = configparser.ConfigParser(interpolation=None)
    try:
        found.read(folder / "setup.cfg", encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return None
    return found.get("metadata", "name", fallback=None)


def _name_in_setup_py(folder: Path) -> str | None:
    """Find the name that ``setup()`` is called with, where that is written out."""
    try:
        tree = ast.parse((folder / "setup.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setup"))
    values = (keyword.value for call in calls for keyword in call.keywords if keyword.arg == "name")
    return next((one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)), None)


def describe_build(folder: Path) -> str:
    """Describe what the installation of the checked-out commit depends on: the same text, the same installation.

    The files that describe the build, the names of the packages and modules, and the commit where code was compiled.
    """
    described = git(folder, "ls-tree", "HEAD", "--", *BUILD_FILES)
    names = git(folder, "ls-tree", "--name-only", "HEAD", "./", "src/")
    compiled = any(folder.rglob("*.so"))
    return "\n".join([described, names, *([git(folder, "rev-parse", "HEAD")] if compiled else [])])


def find_shadowing_import(python: Path, project: Path, package: str, theirs: Path) -> str | None:
    """Say what would be imported instead of a project's own files; None where those are.

    Args:
        python: Of an environment that has the project installed.
        project: The folder that the code is to be imported from.
        package: The project's name.
        theirs: A folder that nothing of the same name is to be imported from: the user's checkout.
    """
    files = map(PurePosixPath, git(project, "ls-files", "--", "*.py").splitlines())
    names = sorted({part for file in files for part in file.with_suffix("").parts if part.isidentifier()})
    clean, found = _find_origins(python, names, "-I"), _find_origins(python, names)
    own = {name: place for name, place in clean.items() if Path(place).is_relative_to(project)}
    if not own:
        return f"{package} installed editable at this commit, but nothing is imported from its files"
    main = re.sub("-", "_", package)
    for name, place in own.items():
        instead = Path(found.get(name, "nowhere"))
        counts = instead.is_relative_to(theirs) or name == main or main not in own
        if counts and str(instead) != place:
            return f"{name} would be imported from {instead}, not from the commit's {place}: see PYTHONPATH"
    return None


def _find_origins(python: Path, names: list[str], *options: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    command = [str(python), *options, "-c", _ORIGINS]
    asked = subprocess.run(command, input=json.dumps(names), env=environ, capture_output=True, text=True, check=True)
    return {find_project_name: place for find_project_name, place in json.loads(asked.stdout).items() if place}
