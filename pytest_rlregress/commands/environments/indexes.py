"""Where packages come from: hand uv what pip is configured with, and ask uv which releases there are."""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from pytest_rlregress.commands.environments import RequestError
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.util.text import on_one_line

#: What says in uv's variables or files where packages come from.
_INDEXES_OF_UV = {
    *("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"),
    *("index", "index-url", "extra-index-url", "no-index"),
}
_TRUE = ("y", "yes", "t", "true", "on", "1")


def read_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what pip is configured with, in variables or files, as variables by which uv uses the same.

    What uv has of its own is left out. The indexes are taken together, from uv or from pip: one's default with the
    other's extras is what nobody configured. So are the links.

    Raises:
        RequestError: A file of theirs cannot be read.
    """
    of_pip, of_uv, variables = _read_pip(environ), _list_known_to_uv(environ), {}
    if not of_uv & _INDEXES_OF_UV:
        if of_pip.get("no-index", "").lower() in _TRUE:
            variables["UV_DEFAULT_INDEX"] = "file:///nonexistent"  # uv has no variable for --no-index
        else:
            if url := of_pip.get("index-url", "").strip():
                variables["UV_DEFAULT_INDEX"] = url
            if more := of_pip.get("extra-index-url", "").split():
                variables |= {"UV_INDEX": " ".join(more), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    # pip passes over a folder that is not there, uv ends with an error.
    places = map(os.path.expanduser, of_pip.get("find-links", "").split())
    links = [place for place in places if "://" in place or os.path.exists(place)]
    if links and not of_uv & {"UV_FIND_LINKS", "find-links"}:
        variables["UV_FIND_LINKS"] = ",".join(links)
    if of_pip.get("cert") and "SSL_CERT_FILE" not in of_uv:
        variables["SSL_CERT_FILE"] = of_pip["cert"].strip()
    return variables


def _list_known_to_uv(environ: Mapping[str, str]) -> set[str]:
    """List what uv has of its own: variables, and the keys of its files, the user's and the first of the system's.

    https://docs.astral.sh/uv/concepts/configuration-files
    """
    user, *system = (Path(folder, "uv/uv.toml") for folder in (*_list_config_folders(environ), "/etc"))
    files = [file for file in (user, next(filter(Path.is_file, system), user)) if file.is_file()]
    if environ.get("UV_NO_CONFIG"):
        files = []
    elif named := environ.get("UV_CONFIG_FILE"):
        files = [Path(named)]
    known = {name for name, value in environ.items() if value}
    for file in files:
        try:
            whole = tomllib.loads(file.read_text(encoding="utf-8"))
            known |= {*whole, *whole.get("pip", {})}
        except (OSError, ValueError) as error:
            raise RequestError(f"{file}: no configuration that uv could read: {error}") from None
    return known


def _read_pip(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what ``pip install`` is configured with: the nearest source of each setting is its only one.

    https://pip.pypa.io/en/stable/topics/configuration/#location
    """
    named = environ.get("PIP_CONFIG_FILE", "")
    user, *shared = (Path(folder, "pip/pip.conf") for folder in _list_config_folders(environ))
    of_user = [Path(environ.get("HOME") or Path.home(), ".pip/pip.conf"), user]
    files = [*shared, Path("/etc/pip.conf"), *of_user, Path(sys.prefix, "pip.conf")]  # the nearest comes last
    if os.path.exists(named):  # takes the place of the user's: https://github.com/pypa/pip/issues/10643
        files = [*(file for file in files if file not in of_user), Path(named)]
    parser = configparser.RawConfigParser()
    parser.optionxform = lambda key: key.lower().replace("_", "-")  # type: ignore[assignment,method-assign]
    try:
        parser.read([] if named == os.devnull else files, encoding="utf-8")
    except (ValueError, configparser.Error) as error:
        raise RequestError(f"no configuration that pip could read: {on_one_line(str(error))}") from None
    found = {
        key: value for part in ("global", "install") if parser.has_section(part) for key, value in parser[part].items()
    }
    variables = {
        name[4:].lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }
    return found | variables


def _list_config_folders(environ: Mapping[str, str]) -> list[str]:
    """List the folders of the user's and then the system's configurations."""
    user = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or Path.home(), ".config")
    return [user, *filter(None, (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep))]


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
        raise _explain(find, package, f"{what} {text} cannot be installed here", error) from None
    return Release(str(wanted) if wanted.local else _public(found), found.date)


def _explain(find: Find, package: str, what: str, error: Unbuildable) -> RequestError:
    """Say that a release cannot be had, why, and which is the newest that can."""
    if not error.conflict:
        return RequestError(f"{error}. Check the network and the settings, or take --no-network, which asks uv's cache")
    with suppress(Unbuildable):
        return RequestError(f"{what}: {error}. Newest that can be installed here: {find(package).version}")
    return RequestError(f"{error}. Check the name, or the settings of uv or pip")


def _public(release: Release) -> str:
    return Version(release.version).public
