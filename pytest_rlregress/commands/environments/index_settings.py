"""Hand to uv where packages come from: pip's configuration, where uv has none of its own."""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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


class IndexProblem(Exception):
    """Packages cannot be looked up: a sentence that says why, where that was set, and what to do."""


def hide_credentials(text: str) -> str:
    """Take the credentials out of a URL, or of a message with URLs in it."""
    return re.sub(r"(?<=//)[^/]*@", "", text)


def read_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Read what pip is configured with, in variables or files, as variables by which uv uses the same.

    What uv has of its own is left out. The indexes are taken together, from uv or from pip: one's default with the
    other's extras is what nobody configured. So are the links.

    Raises:
        IndexProblem: A file of theirs cannot be read.
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
        raise IndexProblem(f"{file}: no configuration that uv could read: {error}") from None


def _read_pip(environ: Mapping[str, str]) -> _Found:
    """Read what ``pip install`` is configured with: the nearest source of each setting is its only one."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in _find_pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text(encoding="utf-8"), str(file))
        except (OSError, ValueError, configparser.Error) as error:
            raise IndexProblem(f"{file}: no configuration that pip could read: {error}") from None
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
    """The values in the text of a variable or a file."""
    values = [text] if key in ("index-url", "cert") else text.split()
    return [value.strip() for value in values if value.strip()]


def _make_absolute(key: str, value: str) -> str:
    """A folder as an absolute path, so that it means the same from everywhere; anything else as it is."""
    if key not in ("index-url", "extra-index-url", "find-links") or "://" in value:
        return value
    return os.path.abspath(os.path.expanduser(value))
