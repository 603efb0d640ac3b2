"""Read where packages come from: the configuration of uv and of pip."""

from __future__ import annotations

import configparser
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

#: The index of those who configured none.
PUBLIC = "https://pypi.org/simple"

# A setting by the name that pip.conf and uv.toml have for it: its values, each with where it was found.
_Found = dict[str, list[tuple[str, str]]]
_INDEXES = ("index-url", "extra-index-url", "no-index")
_UV_VARIABLES = {
    "UV_DEFAULT_INDEX": "index-url",
    "UV_INDEX_URL": "index-url",
    "UV_INDEX": "extra-index-url",
    "UV_EXTRA_INDEX_URL": "extra-index-url",
    "UV_FIND_LINKS": "find-links",
    "UV_INDEX_STRATEGY": "index-strategy",
    "SSL_CERT_FILE": "cert",
}


class IndexProblem(Exception):
    """Packages cannot be looked up: a sentence that says why, where that was set, and what to do."""


@dataclass(frozen=True)
class IndexSettings:
    """Where packages come from. URLs may hold credentials: show them through ``hide_credentials`` only.

    Attributes:
        index_url: The default index: an http(s) or file URL, or a folder; None where indexes are not to be used.
        extra_urls: More indexes.
        find_links: Folders of distributions, and flat pages of links to them.
        certificate: File of the certificates to trust, or None for those of requests and uv.
        first_match: Whether the first index that has a package answers for it, which is what uv does unless told
            otherwise; else all are merged, which is what pip does.
        known_to_uv: Which of ``indexes``, ``find-links`` and ``certificate`` uv reads itself.
        origins: Where each URL, folder and certificate was found, such as ``PIP_INDEX_URL`` or a file.
    """

    index_url: str | None = field(default=PUBLIC, repr=False)
    extra_urls: tuple[str, ...] = field(default=(), repr=False)
    find_links: tuple[str, ...] = field(default=(), repr=False)
    certificate: str | None = None
    first_match: bool = False
    known_to_uv: frozenset[str] = frozenset()
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def indexes(self) -> tuple[str, ...]:
        """The indexes, in the order in which uv asks them; none where they are not to be used."""
        return () if self.index_url is None else (*self.extra_urls, self.index_url)

    def describe(self, place: str) -> str:
        """Name an index or a folder of links in a message: without credentials, and with where it was found."""
        return (
            f"{hide_credentials(place)} (from {self.origins[place]})"
            if place in self.origins
            else hide_credentials(place)
        )

    def uv_variables(self) -> dict[str, str]:
        """Make the environment variables by which uv uses the same, but for what it reads itself."""
        variables = {}
        if "indexes" not in self.known_to_uv:
            if self.index_url is None:
                variables["UV_DEFAULT_INDEX"] = "file:///nonexistent"  # uv has no variable for --no-index
            elif self.index_url != PUBLIC:
                variables["UV_DEFAULT_INDEX"] = self.index_url
            if self.index_url is not None and self.extra_urls:
                variables["UV_INDEX"] = " ".join(self.extra_urls)
                variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        if "find-links" not in self.known_to_uv:
            # pip passes over a folder that is not there, uv ends with an error.
            there = [place for place in self.find_links if "://" in place or os.path.exists(place)]
            variables |= {"UV_FIND_LINKS": ",".join(there)} if there else {}
        if "certificate" not in self.known_to_uv and self.certificate:
            variables["SSL_CERT_FILE"] = self.certificate
        return variables


def hide_credentials(text: str) -> str:
    """Take the credentials out of a URL, or of a message with URLs in it."""
    return re.sub(r"(?<=//)[^/]*@", "", text)


def read_settings(environ: Mapping[str, str]) -> IndexSettings:
    """Read what is configured: in uv's variables, else its files, else pip's variables, else its files.

    Where nothing is, it is the public index.

    The indexes are taken together, from uv or from pip: one's default with the other's extras is what nobody
    configured. So are the links.

    Raises:
        IndexProblem: A file of theirs cannot be read.
    """
    uv, pip = _read_uv(environ), _read_pip(environ)
    indexes = uv if any(key in uv for key in _INDEXES) else pip
    links = uv if "find-links" in uv else pip
    certificates = uv if "cert" in uv else pip
    groups = {"indexes": indexes, "find-links": links, "certificate": certificates}
    taken: _Found = {key: indexes.get(key, []) for key in _INDEXES}
    taken |= {"find-links": links.get("find-links", []), "cert": certificates.get("cert", [])}

    def values(key: str) -> list[str]:
        return [value for value, _ in taken[key]]

    strategy = indexes.get("index-strategy", [("first-index", "")])[0][0]
    return IndexSettings(
        index_url=None if _is_true(values("no-index")) else next(iter(values("index-url")), PUBLIC),
        extra_urls=tuple(values("extra-index-url")),
        find_links=tuple(values("find-links")),
        certificate=next(iter(values("cert")), None),
        first_match=indexes is uv and strategy == "first-index",
        known_to_uv=frozenset(name for name, source in groups.items() if source is uv),
        origins={value: origin for found in taken.values() for value, origin in reversed(found)},
    )


def _is_true(values: list[str]) -> bool:
    return bool(values) and values[0].lower() in ("y", "yes", "t", "true", "on", "1")


def _read_uv(environ: Mapping[str, str]) -> _Found:
    """Read what uv is configured with. It joins the lists of several sources, the nearest first."""
    found: _Found = {}
    for key, name, value, origin in _list_uv_settings(environ):
        place = _add_credentials(name, _make_absolute(key, value), environ)
        found.setdefault(key, []).append((place, origin))
    return found


def _list_uv_settings(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """List uv's settings as (key, name of the index or "", value, origin), the nearest first."""
    for variable, key in _UV_VARIABLES.items():
        for value in _split(key, environ.get(variable, ""), "," if key == "find-links" else None):
            named = re.fullmatch(r"([\w.-]+)=(.+)", value) if key in _INDEXES else None  # name=URL
            yield key, named[1] if named else "", named[2] if named else value, variable
    for file in _find_uv_files(environ):
        for key, name, value in _read_uv_toml(file):
            yield key, name, value, str(file)


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


def _read_uv_toml(file: Path) -> Iterator[tuple[str, str, str]]:
    """Read the settings in a uv.toml as (key, name of the index or "", value)."""
    try:
        whole: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        table = {**whole, **whole.get("pip", {})}
        for index in table.get("index", []):
            if not index.get("explicit"):  # only for the packages that a project's sources tie to it
                extra = "find-links" if index.get("format") == "flat" else "extra-index-url"
                yield "index-url" if index.get("default") else extra, index.get("name", ""), index["url"]
        for key in ("index-url", "index-strategy", "no-index"):
            if key in table:
                yield key, "", str(table[key])
        for key in ("extra-index-url", "find-links"):
            yield from ((key, "", value) for value in table.get(key, []))
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise IndexProblem(f"{file}: no configuration that uv could read: {error}") from None


def _add_credentials(name: str, url: str, environ: Mapping[str, str]) -> str:
    """Add to a URL the credentials in the variables named after its index.

    https://docs.astral.sh/uv/concepts/indexes/#providing-credentials-directly
    """
    prefix = f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"
    user, password = environ.get(f"{prefix}_USERNAME", ""), environ.get(f"{prefix}_PASSWORD", "")
    if not name or not (user or password) or "@" in url.partition("://")[2].partition("/")[0]:
        return url
    return url.replace("://", f"://{quote(user, safe='')}:{quote(password, safe='')}@", 1)


def _read_pip(environ: Mapping[str, str]) -> _Found:
    """Read what ``pip install`` is configured with: the nearest source of each setting is its only one."""
    sections: dict[str, dict[str, tuple[str, str]]] = {"global": {}, "install": {}}
    for file in _find_pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text(encoding="utf-8"), str(file))
        except (OSError, ValueError, configparser.Error) as error:
            raise IndexProblem(f"{file}: no configuration that pip could read: {error}") from None
        for section in sections.keys() & set(parser.sections()):
            for key, value in parser.items(section):
                sections[section].setdefault(key.replace("_", "-"), (value, str(file)))
    variables = {
        name[4:].lower().replace("_", "-"): (value, name)
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }
    settings = {**sections["global"], **sections["install"], **variables}
    return {
        key: [(_make_absolute(key, one), origin) for one in _split(key, value)]
        for key, (value, origin) in settings.items()
        if key in (*_INDEXES, "find-links", "cert")
    }


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


def _split(key: str, text: str, separator: str | None = None) -> list[str]:
    """The values in the text of a variable or a file."""
    values = [text] if key in ("index-url", "cert") else text.split(separator)
    return [value.strip() for value in values if value.strip()]


def _make_absolute(key: str, value: str) -> str:
    """A folder as an absolute path, so that it means the same from everywhere; anything else as it is."""
    if key not in ("index-url", "extra-index-url", "find-links") or "://" in value:
        return value
    return os.path.abspath(os.path.expanduser(value))
