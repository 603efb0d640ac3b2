"""Say since when the installed trainer lacks a key, from what is kept of its releases: nothing is downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator

from packaging.version import Version

from pytest_rlregress.commands.moved.facts import Facts
from pytest_rlregress.commands.moved.index import Index, NoSuchRelease, NotRead
from pytest_rlregress.commands.moved.reading import Reader
from pytest_rlregress.commands.moved.renames import find_message, find_same_name, find_translations, translate
from pytest_rlregress.commands.moved.wheels import TRAINER, Release, Releases
from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.uv import read_sources
from pytest_rlregress.util import cache

_MOST = 40  # releases to look back


def tell_gone(trainer: str, version: str, key: str, known: Collection[str], method: str = "") -> str:
    """Tell since when a release lacks a key, and its new name: ``gone since 0.8.0, now …``; "" where it isn't known.

    Args:
        trainer: ``verl`` or ``trl``.
        version: The release that lacks the key.
        key: Dotted.
        known: The keys that the release has.
        method: TRL's, such as ``grpo``, if one is known.
    """
    folder = cache.folder() / "moved"
    if not folder.is_dir():
        return ""
    try:
        reader = Reader(
            Releases(Index(read_sources(os.environ), folder, offline=True), folder), Facts(folder / "facts")
        )
        here = reader.read(trainer, version, TRAINER)
        later, read = version, [here]
        for release in _list_older(reader, trainer, version):
            read.insert(0, release)
            if _has(release, trainer, key, method):
                return _describe(reader, read, later, key, known)
            later = release.version
    except (NotRead, NoSuchRelease, RequestError, OSError):
        pass
    return ""


def _list_older(reader: Reader, trainer: str, version: str) -> Iterator[Release]:
    """Yield the releases before one, the newest first, as long as they were read before."""
    older = (one for one in reader.releases.index.list_releases(trainer) if Version(one) < Version(version))
    for one in [one for one in older if not Version(one).is_prerelease][: -_MOST - 1 : -1]:
        yield reader.read(trainer, one, TRAINER)


def _has(release: Release, trainer: str, key: str, method: str) -> bool:
    if trainer == "verl":
        text = release.read("verl/trainer/config/_generated_ppo_trainer.yaml")
        return _find_in_yaml(text, key.split("."))
    field = re.compile(rf"^    {re.escape(key)}: ", re.MULTILINE)
    wanted = re.compile(rf"trl/trainer/(?:base|{method})_config\.py" if method else r"trl/trainer/\w+_config\.py")
    files = filter(wanted.fullmatch, release.paths)
    return any(field.search(release.read(path)) for path in files)


def _find_in_yaml(text: str, names: list[str]) -> bool:
    """Return whether a document of tables with two blanks a level has a key, without reading all of it."""
    at = 0
    lines = text.splitlines()
    for depth, name in enumerate(names):
        begin = f"{'  ' * depth}{name}:"
        while at < len(lines) and not (lines[at] == begin or lines[at].startswith(f"{begin} ")):
            if depth and not lines[at].startswith("  " * depth):  # the table has ended
                return False
            at += 1
        if at == len(lines):
            return False
        at += 1
    return True


def _describe(reader: Reader, releases: list[Release], since: str, key: str, known: Collection[str]) -> str:
    translated = translate(key, find_translations(releases[-1]))
    table, _, name = key.rpartition(".")
    messages = [reader.facts.peek(["messages", one.key]) or [] for one in releases]  # to make them takes seconds
    _, message = find_message(name, messages)
    for new in (translated, message, f"{table}.{message}".lstrip(".")):
        if new and new in known:
            return f"gone since {since}, now {new}"
    same = find_same_name(key, known, ()) if table else ""
    return f"gone since {since}, perhaps {same}" if same else f"gone since {since}"
