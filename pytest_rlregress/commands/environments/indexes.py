"""Where packages come from: hand uv what pip is configured with, and ask uv which releases there are."""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from pytest_rlregress.commands.environments import RequestError
from pytest_rlregress.commands.environments.uv import Unbuildable

# A setting by the name that pip.conf has for it: its values.
_Found = dict[str, list[str]]
_TRUE = (["y"], ["yes"], ["t"], ["true"], ["on"], ["1"])
_INDEXES = ("index-url", "extra-index-url", "no-index")
_GROUPS = {"indexes": (*_INDEXES, "index"), "find-links": ("find-links",), "certificate": ("cert",)}
_UV_VARIABLES = {
    "indexes": ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
    "certificate": ("SSL_CERT_FILE",),
}


def read_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what pip is configured with, in variables or files, as variables by which uv uses the same.

    What uv has of its own is left out. The indexes are taken together, from uv or from pip: one's default with the
    other's extras is what nobody configured. So are the links.

    Raises:
        RequestError: A file of theirs cannot be read.
    """
    found, known = _read_pip(environ), {*_list_known_to_uv(environ)}
    variables = {} if "indexes" in known else _choose_indexes(found)
    # pip passes over a folder that is not there, uv ends with an error.
    links = [place for place in found.get("find-links", []) if "://" in place or os.path.exists(place)]
    if links and "find-links" not in known:
        variables["UV_FIND_LINKS"] = ",".join(links)
    if found.get("cert") and "certificate" not in known:
        variables["SSL_CERT_FILE"] = found["cert"][0]
    return variables


def _choose_indexes(found: _Found) -> dict[str, str]:
    if [value.lower() for value in found.get("no-index", [])][:1] in _TRUE:
        return {"UV_DEFAULT_INDEX": "file:///nonexistent"}  # uv has no variable for --no-index
    variables = {}
    if found.get("index-url"):
        variables["UV_DEFAULT_INDEX"] = found["index-url"][0]
    if found.get("extra-index-url"):
        variables |= {"UV_INDEX": " ".join(found["extra-index-url"]), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return variables


def _list_known_to_uv(environ: Mapping[str, str]) -> Iterator[str]:
    tables = [table for file in _find_uv_files(environ) for table in _read_uv_toml(file)]
    for group, keys in _GROUPS.items():
        if any(environ.get(name) for name in _UV_VARIABLES[group]) or any(
            key in table for table in tables for key in keys
        ):
            yield group


def _find_uv_files(environ: Mapping[str, str]) -> list[Path]:
    """Find uv's files, the user's, then the first of the system's.

    https://docs.astral.sh/uv/concepts/configuration-files
    """
    if environ.get("UV_NO_CONFIG"):
        return []
    if environ.get("UV_CONFIG_FILE"):
        return [Path(environ["UV_CONFIG_FILE"])]
    user = _user_config_folder(environ) / "uv/uv.toml"
    system = [Path(folder, "uv/uv.toml") for folder in (*_shared_config_folders(environ), "/etc")]
    return [file for file in [user] if file.is_file()] + [file for file in system if file.is_file()][:1]


def _read_uv_toml(file: Path) -> list[dict[str, Any]]:
    try:
        whole: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return [whole, dict(whole.get("pip", {}))]
    except (OSError, ValueError, TypeError) as error:
        raise RequestError(f"{file}: no configuration that uv could read: {error}") from None


def _read_pip(environ: Mapping[str, str]) -> _Found:
    """Read what ``pip install`` is configured with: the nearest source of each setting is its only one."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in _find_pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text(encoding="utf-8"), str(file))
        except (OSError, ValueError, configparser.Error) as error:
            raise RequestError(f"{file}: no configuration that pip could read: {error}") from None
        for section in sections.keys() & set(parser.sections()):
            for key, value in parser.items(section):
                sections[section].setdefault(key.replace("_", "-"), value)
    variables = {
        name[4:].lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }
    settings = {**sections["global"], **sections["install"], **variables}
    return {key: [_make_absolute(key, one) for one in _split(key, value)] for key, value in settings.items()}


def _find_pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Find pip's files, the nearest first: https://pip.pypa.io/en/stable/topics/configuration/#location."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    files = [Path(sys.prefix, "pip.conf")]
    if named and os.path.exists(named):  # takes the place of the user's: https://github.com/pypa/pip/issues/10643
        files.insert(0, Path(named))
    else:
        files += [_user_config_folder(environ) / "pip/pip.conf", _home(environ) / ".pip/pip.conf"]
    shared = [Path(folder, "pip/pip.conf") for folder in _shared_config_folders(environ)]
    files += [Path("/etc/pip.conf"), *reversed(shared)]
    return [file for file in files if file.is_file()]


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _user_config_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or _home(environ) / ".config")


def _shared_config_folders(environ: Mapping[str, str]) -> list[str]:
    return [folder for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep) if folder]


def _split(key: str, text: str) -> list[str]:
    """Return the values in the text of a variable or a file."""
    values = [text] if key in ("index-url", "cert") else text.split()
    return [value.strip() for value in values if value.strip()]


def _make_absolute(key: str, value: str) -> str:
    """Return a folder as an absolute path, so that it means the same from everywhere; anything else as it is."""
    if key not in ("index-url", "extra-index-url", "find-links") or "://" in value:
        return value
    return os.path.abspath(os.path.expanduser(value))


#: Finds the newest release that meets a requirement, ``find("torch<2.13", pre=False)``; raises Unbuildable.
Find = Callable[..., "Release"]


@dataclass(frozen=True)
class Release:
    """A released version that can be installed here.

    Attributes:
        version: In its normal form.
        date: The day its first file was uploaded, as ``2025-01-31``, or None where no index says.
    """

    version: str
    date: str | None = None


def list_candidates(find: Find, package: str, good: str, bad: str, pre: bool) -> list[Release]:
    """List the candidates, from the good end to the bad end, which may be the older one; both are part of it.

    But for the ends yanked releases are left out, those that cannot be installed here, and pre-releases unless ``pre``.
    A release is one candidate, however many builds with a label (``+cpu``) it has.

    Raises:
        RequestError: An end is not on an index or cannot be installed here, or both are the same.
    """
    ends = [find_release(find, package, f"the {word} end", text) for word, text in (("good", good), ("bad", bad))]
    older, newer = sorted(ends, key=lambda one: Version(one.version))
    if older.version == newer.version:
        raise RequestError(f"the good end and the bad end are the same release, {older.version}")
    found = [newer]
    first, last = _public(older), _public(newer)
    with suppress(Unbuildable):
        while last != first:
            one = find(f"{package}>={first},<={last},!={last}", pre=pre)
            last = _public(one)
            if last != first:
                found.append(Release(last, one.date))
    found.append(older)
    return found if ends[0] == newer else found[::-1]


def list_left_out(find: Find, package: str, known: Sequence[str], pre: bool) -> list[tuple[str, str]]:
    """List the releases between two versions that cannot be installed here or are yanked, each with the reason.

    Args:
        find: Asks uv.
        package: Its name.
        known: The two versions, and those between them that were candidates.
        pre: Whether pre-releases count.
    """
    low, *between, high = sorted(map(Version, known))
    conditions = [f">{low.public}", f"<{high.public}", *(f"!={one.public}" for one in between)]
    try:
        find(f"{package}{','.join(conditions)}", pre=pre)
    except Unbuildable as error:
        named = {Version(text) for text in re.findall(rf"{re.escape(package)}==([\w.!+]*\w)", error.text)}
        return [
            (str(one), _explain_left_out(find, package, one))
            for one in sorted(named - set(between))
            if low < one < high and (pre or not one.is_prerelease)
        ]
    return []


def _explain_left_out(find: Find, package: str, version: Version) -> str:
    try:
        find(f"{package}=={version}", pre=True)
    except Unbuildable as error:
        return str(error)
    return "yanked"


def find_newest(find: Find, package: str, wanted: str, pre: bool) -> Release:
    """Find the newest release of the wanted versions that can be installed here.

    Raises:
        RequestError: There is none.
    """
    try:
        return find(f"{package}{wanted}", pre=pre)
    except Unbuildable as error:
        raise _explain(find, package, f"no release is {wanted or 'there'}", error) from None


def find_release(find: Find, package: str, what: str, text: str) -> Release:
    """Find the release of a version.

    Raises:
        RequestError: It is not on an index or cannot be installed here; ``what`` says what the version is.
    """
    try:
        wanted = Version(text)
    except InvalidVersion:
        raise RequestError(f"{what} isn't a version: {text!r}") from None
    try:
        found = find(f"{package}=={wanted}", pre=True)
    except Unbuildable as error:
        above, below = f">{wanted.public}", f"<{wanted.public}"
        raise _explain(find, package, f"{what} {text} cannot be installed here", error, below, above) from None
    return Release(str(wanted) if wanted.local else _public(found), found.date)


def _explain(find: Find, package: str, what: str, error: Unbuildable, *beside: str) -> RequestError:
    """Say that a release cannot be had, why, and which are the closest."""
    if not error.conflict:
        return RequestError(f"{error}. Check the network and the settings, or take --no-network, which asks uv's cache")
    closest = []
    for condition in beside:
        with suppress(Unbuildable):
            closest.append(find(f"{package}{condition}", lowest=condition.startswith(">")).version)
    with suppress(Unbuildable):
        newest = f"newest that can be installed here: {find(package).version}"
        near = f"Closest: {' and '.join(closest)}; {newest}" if closest else newest
        return RequestError(f"{what}: {error}. {near}")
    return RequestError(f"{error}. Check the name, or the settings of uv or pip")


def _public(release: Release) -> str:
    return Version(release.version).public
