"""Which releases of a package there are, and their wheels, as the indexes of uv and pip say."""

from __future__ import annotations

import base64
import json
import netrc
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from pytest_rlregress.environments.uv import PackageSources
from pytest_rlregress.util.files import write_whole

_FRESH = 3600.0  # seconds for which a list of releases is used again
_TIMEOUT = 30.0
_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPTED = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class NotRead(Exception):
    """Something that could not be read, which says nothing about what is in it: the message says what and why."""


class NoSuchRelease(Exception):
    """A release or a package that no index has: the message names the nearest."""


@dataclass(frozen=True)
class Wheel:
    """A wheel on an index or in a folder.

    Attributes:
        package: Its normalised name.
        version: In its normal form.
        url: Where it is.
        sha256: As the index says it, else "".
        size: In bytes; 0 where the index doesn't say it.
        yanked: Whether the index takes it for withdrawn.
        any_platform: Whether it is for every platform and Python.
    """

    package: str
    version: str
    url: str
    sha256: str = ""
    size: int = 0
    yanked: bool = False
    any_platform: bool = True

    @property
    def file_name(self) -> str:
        """The last part of its URL."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url).path.rpartition("/")[2])

    @property
    def key(self) -> str:
        """What names its content: the file's name and its hash, or where it is if the index gives none."""
        return f"{self.file_name}.{(self.sha256 or sha256(self.url.encode()).hexdigest())[:16]}"


class Index:
    """Lists the wheels of packages.

    Args:
        sources: Indexes and links.
        folder: Where lists are kept.
        offline: Whether only what is kept and what is on this machine may be used.
    """

    def __init__(self, sources: PackageSources, folder: Path, *, offline: bool = False) -> None:
        self._sources, self._folder, self.offline = sources, folder, offline
        self._known: dict[str, dict[str, list[Wheel]]] = {}

    def list_releases(self, package: str) -> list[str]:
        """List the versions of a package that have a wheel, the oldest first.

        Raises:
            NoSuchRelease: No index has the package, or it has no wheel.
            NotRead: An index could not be asked.
        """
        return sorted(self._find(canonicalize_name(package)), key=Version)

    def list_between(self, package: str, first: str, last: str) -> list[str]:
        """List the final releases from one to the other, both of them in it whatever they are, in that order."""
        ends = sorted((Version(first), Version(last)))
        inside = (
            version
            for version, wheels in self._find(canonicalize_name(package)).items()
            if ends[0] < Version(version) < ends[1]
            and not Version(version).is_prerelease
            and not all(wheel.yanked for wheel in wheels)
        )
        found = [str(ends[0]), *sorted(inside, key=Version), str(ends[1])]
        return found if Version(first) <= Version(last) else found[::-1]

    def find_wheel(self, package: str, version: str) -> Wheel:
        """Find a release's wheel: one for every platform before any other, as its Python is what is read.

        Raises:
            NoSuchRelease: There is none: the message names the nearest.
            NotRead: An index could not be asked.
        """
        releases = self._find(canonicalize_name(package))
        try:
            wanted = Version(version)
        except InvalidVersion:
            raise NoSuchRelease(f"{version!r} isn't a version of {package}: write {package}==1.2.3") from None
        same = next((one for one in releases if Version(one) == wanted), None)
        if same is None:
            raise NoSuchRelease(f"{package} {version} has no wheel: {_describe_nearest(version, list(releases))}")
        return min(releases[same], key=lambda wheel: (not wheel.any_platform, wheel.size))

    def _find(self, package: str) -> dict[str, list[Wheel]]:
        if package not in self._known:
            wheels = [*self._list_linked(package)]
            with ThreadPoolExecutor(4) as threads:
                for listed in threads.map(lambda url: self._list_on(url, package), self._sources.indexes):
                    wheels += listed
            found: dict[str, dict[str, Wheel]] = {}
            for wheel in wheels:
                found.setdefault(wheel.version, {}).setdefault(wheel.file_name, wheel)
            if not found:
                raise NoSuchRelease(f"no index has a wheel of {package}: check the name, or the settings of uv or pip")
            self._known[package] = {version: [*files.values()] for version, files in found.items()}
        return self._known[package]

    def _list_on(self, index: str, package: str) -> list[Wheel]:
        url = f"{index}/{package}/"
        if url.startswith("file:"):
            page = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path), "index.html")
            return [*_read_html(page.read_text(encoding="utf-8"), page.as_uri(), package)] if page.is_file() else []
        kept = self._folder / f"{package}-{sha256(url.encode()).hexdigest()[:12]}.json"
        seconds = time.time() - kept.stat().st_mtime if kept.is_file() else None
        if seconds is not None and (self.offline or seconds < _FRESH):
            try:
                return [Wheel(**one) for one in json.loads(kept.read_text(encoding="utf-8"))]
            except (ValueError, TypeError):  # cut off
                pass
        if self.offline:
            raise NotRead(f"no network is allowed, and the list of {package}'s releases is not kept")
        wheels = [*self._download_list(url, package)]
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(kept, json.dumps([asdict(one) for one in wheels]))
        return wheels

    def _download_list(self, url: str, package: str) -> Iterator[Wheel]:
        try:
            with open_url(url, {"Accept": _ACCEPTED}) as answer:
                text, kind, base = answer.read().decode(), answer.headers.get_content_type(), answer.url
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return
            raise NotRead(f"the index answered {error.code} for {package}") from None
        except (OSError, ValueError) as error:
            raise NotRead(f"the index can't be asked for {package}: {describe_failure(error)}") from None
        try:
            yield from _read_json(text, base, package) if kind == _JSON else _read_html(text, base, package)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise NotRead(f"the index's list of {package} can't be read: {error}") from None

    def _list_linked(self, package: str) -> Iterator[Wheel]:
        for place in self._sources.links:
            folder = Path(urllib.request.url2pathname(urllib.parse.urlsplit(place).path))
            if place.startswith("file:") or "://" not in place:
                files = folder.expanduser().absolute().glob("*.whl") if folder.is_dir() else ()
                for file in files:
                    if wheel := _make_wheel(package, file.name, file.as_uri(), size=file.stat().st_size):
                        yield wheel
            elif not self.offline:
                yield from self._download_list(place, package)


def open_url(url: str, headers: Mapping[str, str]) -> Any:
    """Open a URL with its credentials, else those of netrc; proxies and certificates are those of the environment."""
    parts = urllib.parse.urlsplit(url)
    user, password = parts.username or "", parts.password or ""
    if not user:
        with suppress(OSError, netrc.NetrcParseError):
            user, _, password = netrc.netrc().authenticators(parts.hostname or "") or ("", None, "")
    sent = dict(headers)
    if user:
        both = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
        sent["Authorization"] = f"Basic {base64.b64encode(both.encode()).decode()}"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return urllib.request.urlopen(urllib.request.Request(bare, headers=sent), timeout=_TIMEOUT)


def describe_failure(error: Exception) -> str:
    """Describe in words why a file or a server could not be read."""
    reason = getattr(error, "reason", None) or error
    number = reason.errno if isinstance(reason, OSError) else None
    return os.strerror(number) if number and number > 0 else str(reason)


def _describe_nearest(wanted: str, versions: list[str]) -> str:
    known = sorted(versions, key=Version)
    near = get_close_matches(wanted, known, 1) or known[-1:]
    newest = "" if near == known[-1:] else f", the newest is {known[-1]}"
    return f"the nearest that has one is {near[0]}{newest}"


def _make_wheel(package: str, file_name: str, url: str, **more: Any) -> Wheel | None:
    try:
        name, version, _, tags = parse_wheel_filename(file_name)
    except (InvalidWheelFilename, InvalidVersion):  # an sdist, or another file
        return None
    if name != package:
        return None
    return Wheel(package, str(version), url, any_platform=any(tag.platform == "any" for tag in tags), **more)


def _read_json(text: str, base: str, package: str) -> Iterator[Wheel]:
    for file in json.loads(text)["files"]:
        more = {"sha256": file.get("hashes", {}).get("sha256", ""), "size": file.get("size") or 0}
        url = urllib.parse.urljoin(base, file["url"])
        if wheel := _make_wheel(package, file["filename"], url, yanked=bool(file.get("yanked")), **more):
            yield wheel


def _read_html(text: str, base: str, package: str) -> Iterator[Wheel]:
    links = _Links()
    links.feed(text)
    for attributes in links.found:
        url, _, fragment = urllib.parse.urljoin(base, attributes["href"] or "").partition("#")
        name = urllib.parse.unquote(url.rpartition("/")[2])
        digest = re.match(r"sha256=([0-9a-f]{64})", fragment)
        if wheel := _make_wheel(
            package, name, url, sha256=digest[1] if digest else "", yanked="data-yanked" in attributes
        ):
            yield wheel


class _Links(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link's attributes."""
        if tag == "a" and dict(attrs).get("href"):
            self.found.append(dict(attrs))
