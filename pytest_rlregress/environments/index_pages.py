"""Fetch what package indexes and folders of links have of a package, over http(s) or from disk."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from urllib.request import url2pathname

from packaging.utils import parse_sdist_filename, parse_wheel_filename

from pytest_rlregress.environments.index_settings import IndexProblem, IndexSettings, hide_credentials
from pytest_rlregress.util.files import write_whole

_TIMEOUT_SECONDS = 60.0
_NOTHING_THERE = (401, 403, 404, 410)  # some indexes refuse what they do not have: download.pytorch.org says 403


@dataclass(frozen=True)
class IndexFile:
    """A wheel or sdist on an index.

    Attributes:
        name: The file's.
        version: The release it belongs to.
        python: Its Requires-Python, or None.
        yanked: Why it was taken back, or None.
        day: When it was uploaded, as ``2025-01-31``, or None where the index does not say.
    """

    name: str
    version: str
    python: str | None = None
    yanked: str | None = None
    day: str | None = None


@dataclass(frozen=True)
class IndexPage:
    """What one index or folder has of a package; where that is nothing, its answer."""

    place: str
    files: tuple[IndexFile, ...]
    status: str = "none"


def fetch_pages(package: str, settings: IndexSettings, cache: Path, offline: bool) -> list[IndexPage]:
    """Fetch what all indexes and folders have of a package, by its normalised name.

    Args:
        package: The name.
        settings: Where to look.
        cache: Folder in which the answers over http(s) are kept, one file for each index and package.
        offline: Whether to read those instead of asking.

    Raises:
        IndexProblem: One cannot be reached, or answers with an error.
    """

    def at(place: str, page: str) -> IndexPage:
        if not page.startswith(("http://", "https://")):
            return _read_from_disk(page, package)
        known = cache / f"{package}-{hashlib.sha256(hide_credentials(page).encode()).hexdigest()[:16]}.json"
        if offline:
            return _read_cached(known, settings.describe(place))
        return _cache(known, _fetch_page(place, page, package, settings))

    answers = [at(place, place) for place in settings.find_links]
    for index in settings.indexes:
        answers.append(at(index, f"{index.rstrip('/')}/{package}/"))
        if settings.first_match and answers[-1].files:
            break
    return answers


def _read_cached(known: Path, place: str) -> IndexPage:
    """Read what an index answered before; one that was not asked has nothing that could be had now."""
    try:
        answer = json.loads(known.read_text(encoding="utf-8"))
        return IndexPage(answer["place"], tuple(IndexFile(**file) for file in answer["files"]), answer["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return IndexPage(place, (), "no answer is kept: run once without --no-network")


def _cache(known: Path, answer: IndexPage) -> IndexPage:
    """Write an answer to its file: all of it or nothing."""
    try:
        known.parent.mkdir(parents=True, exist_ok=True)
        write_whole(known, json.dumps(asdict(answer)))
    except OSError as error:
        raise IndexProblem(f"{known}: what the index answered cannot be kept: {error.strerror}") from None
    return answer


def _read_from_disk(page: str, package: str) -> IndexPage:
    path = Path(url2pathname(urlparse(page).path) if page.startswith("file:") else page)
    if page.endswith("/") and (path / "index.html").exists():
        path /= "index.html"
    try:
        if path.is_dir():
            versions = {name: _version(name, package) for name in sorted(os.listdir(path))}
            return IndexPage(
                str(path), tuple(IndexFile(name, version) for name, version in versions.items() if version)
            )
        html = path.read_bytes()
    except OSError as error:
        return IndexPage(str(path), (), str(error.strerror))
    return IndexPage(
        str(path), _list_files(_pypi_simple().ProjectPage.from_html(package, html, path.as_uri()), package)
    )


def _fetch_page(place: str, page: str, package: str, settings: IndexSettings) -> IndexPage:
    pypi_simple = _pypi_simple()
    response = _get(page, place, package, settings, accept=pypi_simple.ACCEPT_ANY)
    status = f"{response.status_code} {response.reason}"
    if response.status_code in _NOTHING_THERE:
        return IndexPage(hide_credentials(place), (), status)
    if response.status_code >= 400:
        raise IndexProblem(f"{package}: {settings.describe(place)} answered {status}. Try again later.")
    try:
        files = _list_files(pypi_simple.ProjectPage.from_response(response, package), package)
    except (ValueError, pypi_simple.UnsupportedRepoVersionError) as error:
        reason = hide_credentials(" ".join(str(error).split()))
        raise IndexProblem(f"{package}: {settings.describe(place)} is no package index: {reason}") from None
    if page != place and any(file.day is None for file in files):
        days = _fetch_upload_days(place, package, settings)
        files = tuple(replace(file, day=file.day or days.get(file.name)) for file in files)
    return IndexPage(hide_credentials(place), files)


def _fetch_upload_days(index: str, package: str, settings: IndexSettings) -> dict[str, str]:
    """Fetch the day of each file's upload from the JSON beside an index: its pages often leave it out."""
    beside, replaced = re.subn(r"/simple/?$", f"/pypi/{package}/json", index)
    if not replaced:
        return {}
    try:
        found = _get(beside, index, package, settings, accept="application/json").json()["releases"]
        return {file["filename"]: file["upload_time"][:10] for files in found.values() for file in files}
    except (IndexProblem, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _get(url: str, place: str, package: str, settings: IndexSettings, accept: str) -> Any:
    import requests

    certificates = settings.certificate or True
    try:
        return requests.get(url, headers={"Accept": accept}, timeout=_TIMEOUT_SECONDS, verify=certificates)
    except (requests.RequestException, OSError) as error:
        raise IndexProblem(
            f"{package}: {settings.describe(place)} cannot be reached: {_reason(error)}. Check the network and the "
            "settings, or take --no-network, which reads what was kept before."
        ) from None


def _reason(error: Exception) -> str:
    """What went wrong, without the objects that requests and urllib3 wrap it in."""
    inner = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
    text = " ".join(str(getattr(inner, "reason", inner)).split())
    return hide_credentials(re.sub(r"^.*?[)>]: ", "", text).rstrip("."))


def _list_files(page: Any, package: str) -> tuple[IndexFile, ...]:
    """List the files of the package on a page of pypi-simple's."""
    files = []
    for link in page.packages:
        name = unquote(urlparse(link.url).path.rpartition("/")[2])
        version = _version(name, package)
        if version:
            yanked = (link.yanked_reason or "no reason given") if link.is_yanked else None
            day = link.upload_time.date().isoformat() if link.upload_time else None
            files.append(IndexFile(name, version, link.requires_python, yanked, day))
    return tuple(files)


def _version(file_name: str, package: str) -> str | None:
    """The version of a wheel or sdist of this package; None for any other file."""
    try:
        wheel = file_name.endswith(".whl")
        name, version = parse_wheel_filename(file_name)[:2] if wheel else parse_sdist_filename(file_name)
    except ValueError:
        return None
    return str(version) if name == package else None


def _pypi_simple() -> Any:
    try:
        import pypi_simple
    except ImportError:
        raise IndexProblem(
            'package indexes are read with pypi-simple, which is not installed: pip install "pytest-rlregress[bisect]"'
        ) from None
    return pypi_simple
