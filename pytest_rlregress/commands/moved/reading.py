"""Read the releases of a range, the ends and those between, at the same time; what isn't read is told."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata

from packaging.version import Version

from pytest_rlregress.commands.moved.facts import Facts
from pytest_rlregress.commands.moved.findings import Finding
from pytest_rlregress.commands.moved.index import NotRead
from pytest_rlregress.commands.moved.renames import list_messages
from pytest_rlregress.commands.moved.wheels import Release, Releases, Selection, read_installed

_THREADS = 6


@dataclass
class Answer:
    """What a look at a range of releases found.

    Attributes:
        findings: In no order.
        checked: What was compared, in words.
        not_read: What wasn't, with the reason: it may have moved.
        notes: What a reader should know beside it.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Answer) -> None:
        """Add what another look found."""
        self.findings += other.findings
        self.checked += other.checked
        self.not_read += other.not_read
        self.notes += other.notes


@dataclass(frozen=True)
class Reader:
    """Reads releases and keeps what is derived from them.

    Attributes:
        releases: Reads wheels.
        facts: Keeps what is derived.
    """

    releases: Releases
    facts: Facts

    def read(self, package: str, version: str, selection: Selection) -> Release:
        """Read a release: as it is installed, if it is the installed one, else its wheel.

        Raises:
            NotRead: It could not be read.
            NoSuchRelease: There is none.
        """
        if find_installed(package) == version:
            try:
                return read_installed(package, selection)
            except NotRead:  # such as of an editable project: its wheel may be there
                pass
        return self.releases.read(package, version, selection)

    def read_range(self, package: str, ends: tuple[str, str], selection: Selection, answer: Answer) -> list[Release]:
        """Read the releases from one to the other; one between that can't be read is told.

        Raises:
            NotRead: An end could not be read.
            NoSuchRelease: There is no such end.
        """

        def read(version: str) -> Release | str:
            try:
                return self.read(package, version, selection)
            except NotRead as error:
                if version in ends:
                    raise
                return f"{package} {version}, which is between the ends: {error}"

        with ThreadPoolExecutor(_THREADS) as threads:
            found = [*threads.map(read, self.list_range(package, ends, answer))]
        answer.not_read += [one for one in found if isinstance(one, str)]
        read_ones = [one for one in found if isinstance(one, Release)]
        answer.notes += [one.note for one in read_ones if one.note]
        return read_ones

    def list_range(self, package: str, ends: tuple[str, str], answer: Answer) -> list[str]:
        """List the releases of a range; the ends alone where the index can't be asked."""
        try:
            return self.releases.index.list_between(package, *ends)
        except NotRead as error:
            answer.not_read.append(f"the releases between the ends: {error}")
            return [*ends]

    def list_messages(self, releases: Sequence[Release]) -> list[list[str]]:
        """List what each release says of names that go."""
        found = []
        for release in releases:
            key = ["messages", release.key] if release.key else None
            found.append(self.facts.find(key, partial(list_messages, release)))
        return found

    def find_allowed(self, release: Release, package: str) -> str:
        """Find the release of a package that another one goes with: the installed one, if its metadata allow it.

        Else it is the newest that they allow.

        Raises:
            NotRead: There is none that could be known.
        """
        conditions = [
            one.specifier
            for one in release.requirements
            if one.name == package and (one.marker is None or one.marker.evaluate({"extra": ""}))
        ]
        here = find_installed(package)
        if here and all(one.contains(here, prereleases=True) for one in conditions):
            return here
        known = self.releases.index.list_releases(package)
        allowed = [one for one in known if all(condition.contains(one) for condition in conditions)]
        final = [one for one in allowed if not Version(one).is_prerelease]
        if not final:
            raise NotRead(f"no release of {package} is one that {release.package} {release.version} allows")
        return final[-1]


def find_installed(package: str) -> str:
    """Return the version of a package that is installed here; "" where it isn't."""
    for name in (package, f"{package}-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""
