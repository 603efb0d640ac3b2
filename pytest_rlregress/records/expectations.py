"""Read what a team expects of its runs, ``rlregress-expect.toml``: which bad verdicts are known, and why."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from pytest_rlregress.failures.catalogue import CONDITIONS, Catalogue, CatalogueError
from pytest_rlregress.failures.verdicts import Rank, Verdict, rank
from pytest_rlregress.records.record_types import RecordedTest, find_area
from pytest_rlregress.stack import COMPONENTS, PARTS, SYSTEMS, Stack
from pytest_rlregress.util import toml_table
from pytest_rlregress.util.text import plural

#: What its tables are called.
TABLE = "expect"
#: The words that can fail a run: what an entry may expect first.
BAD_WORDS = (
    *(verdict.value for verdict in Verdict if verdict.fails),
    *(Verdict.ABSENT.value, Verdict.UNAVAILABLE.value, "failed", "error", "broken"),
)
WORDS = (*dict.fromkeys((*BAD_WORDS, *Verdict, "passed")),)
#: The keys by which an entry says which tests it is about: one of them.
SELECTORS = ("failure", "area", "component", "tests")


class ExpectationError(ValueError):
    """A file of expectations that can't be read as one: the message names file, line and key."""


@dataclass(frozen=True)
class Here:
    """Where a run is: what the conditions of entries ask for."""

    stack: Stack
    profile: str | None
    today: datetime.date
    systems: tuple[str, ...] = ()

    @classmethod
    def now(cls, stack: Stack, profile: str | None) -> Here:
        """Describe this machine, today."""
        systems = tuple(name for name, is_one in SYSTEMS.items() if is_one())
        return cls(stack, profile, datetime.date.today(), systems)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """An entry of the file.

    Attributes:
        place: Of its first line: ``rlregress-expect.toml:12``.
        lines: Its first and its last line, counted from 1.
        failure: The id of the failure whose tests it is about; "" for none, as for the next three.
        area: The folder of failures.
        component: The component that is broken.
        tests: Names of tests as records have them; ``*`` stands for any text.
        verdicts: The verdicts that are expected, the usual one first; with a second one the tests are known to waver.
        stack: With which versions, by component or distribution.
        hardware: On which profiles; empty for any.
        system: On which operating systems; empty for any.
        because: Why.
        issue: The address at which it is looked after.
        until: The day from which it isn't expected any more, or the version of each component.
    """

    place: str
    lines: tuple[int, int]
    verdicts: tuple[str, ...]
    because: str
    issue: str
    failure: str = ""
    area: str = ""
    component: str = ""
    tests: tuple[str, ...] = ()
    stack: Mapping[str, str]
    hardware: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    until: datetime.date | Mapping[str, str] | None = None

    @property
    def about(self) -> str:
        """Which tests it is about, in words."""
        return self.failure or self.component or (f"area {self.area}" if self.area else ", ".join(self.tests))

    @property
    def wavers(self) -> bool:
        """Whether its tests are known to come out one way or another."""
        return len(self.verdicts) > 1

    def selects(self, name: str, failure: str, component: str) -> bool:
        """Return whether it is about the test of that name, which is about a failure, or a component's check."""
        if self.component or component:
            return self.component == component
        if self.failure:
            return self.failure == failure
        if self.area:
            return self.area == find_area(name, failure)
        return any(_matches(name, pattern) for pattern in self.tests)

    def holds(self, here: Here) -> bool:
        """Return whether its condition is true, and its time is not over."""
        return (
            all(here.stack.satisfies(name, spec) for name, spec in self.stack.items())
            and (not self.hardware or here.profile in self.hardware)
            and (not self.system or not set(self.system).isdisjoint(here.systems))
            and not self.why_over(here)
        )

    def why_over(self, here: Here) -> str:
        """Say that its time is over; "" if it isn't."""
        if isinstance(self.until, datetime.date):
            return f"expected until {self.until} only" if here.today >= self.until else ""
        for name, version in (self.until or {}).items():
            if here.stack.satisfies(name, f">={version}"):
                return f"expected until {name} {version} only, and {here.stack.versions[name]} is installed"
        return ""


def find_expected(
    entries: Iterable[Expectation], here: Here, word: str, name: str, failure: str = "", component: str = ""
) -> Expectation | None:
    """Return the entry that expects this word of a test here; None if none does."""
    for entry in entries:
        if word in entry.verdicts and entry.selects(name, failure, component) and entry.holds(here):
            return entry
    return None


def find_obsolete(
    entries: Iterable[Expectation], here: Here, tests: Collection[RecordedTest], *, every_test: bool
) -> list[tuple[Expectation, str]]:
    """Return the entries that are to be deleted, each with the reason.

    Args:
        entries: Of the file.
        here: Where the tests ran.
        tests: Of the run.
        every_test: Whether no test was left out: only then can it be said that an entry is about none.
    """
    found = []
    for entry in entries:
        selected = [test for test in tests if entry.selects(test.name, test.extra.failure, test.extra.component)]
        if why := entry.why_over(here):
            found.append((entry, why))
        elif not selected and every_test:
            found.append((entry, "no test of this run is meant by it"))
        elif entry.holds(here) and not entry.wavers and (why := _why_fulfilled(selected)):
            found.append((entry, why))
    return found


def _why_fulfilled(selected: Collection[RecordedTest]) -> str:
    """Say that tests came out well, all that say something; "" if one did not, or none says anything."""
    said = [test for test in selected if test.extra.expected or rank(test.word) is not Rank.NOTHING]
    if not said or any(test.extra.expected or test.status == "failed" for test in said):
        return ""
    words = ", ".join(dict.fromkeys(test.word for test in said))
    return f"{plural(len(said), 'test')} {words}"


def _matches(name: str, pattern: str) -> bool:
    # The brackets of a parametrized test are themselves here, not a set of characters.
    return fnmatchcase(name, pattern.replace("[", "[[]"))


# -- reading -----------------------------------------------------------------------------------------------------------


def load(path: Path, catalogue: Catalogue, profiles: Collection[str]) -> tuple[Expectation, ...]:
    """Read a file: see ``read_entries``."""
    return read_entries(toml_table.read(path, ExpectationError), path, catalogue, profiles)


def read_entries(text: str, path: Path, catalogue: Catalogue, profiles: Collection[str]) -> tuple[Expectation, ...]:
    """Read the entries of a file's text.

    Args:
        text: What is in the file, or is going to be.
        path: The file, for messages.
        catalogue: Every documented failure.
        profiles: The names of every hardware profile.

    Raises:
        ExpectationError: It is no such file, an entry has a wrong key or value, names what isn't known, has a condition
            that nothing fulfils, or two are about the same.
    """
    document = toml_table.parse(text, path, ExpectationError)
    tables = toml_table.check(document, str(path), ExpectationError, {}, {TABLE: toml_table.tables}).get(TABLE, [])
    entries = [
        _read_entry(table, path.name, lines, catalogue, profiles)
        for table, lines in zip(tables, _find_lines(text, len(tables)), strict=True)
    ]
    _check_apart(entries)
    return tuple(entries)


def _find_lines(text: str, count: int) -> list[tuple[int, int]]:
    """Return the first and last line of each table; those of the whole file where the tables are written otherwise."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if re.match(rf"\s*\[\[\s*{TABLE}\s*\]\]", line)]
    if len(starts) != count:
        return [(1, len(lines))] * count
    return [
        (start, max(number for number in range(start, after) if lines[number - 1].strip()))
        for start, after in pairwise([*starts, len(lines) + 1])
    ]


def _read_entry(
    table: dict[str, Any], file: str, lines: tuple[int, int], catalogue: Catalogue, profiles: Collection[str]
) -> Expectation:
    place = f"{file}:{lines[0]}"
    values = toml_table.check(table, place, ExpectationError, _REQUIRED, _OPTIONAL)
    chosen = [key for key in SELECTORS if key in values]
    if len(chosen) != 1:
        given = f", not {' and '.join(chosen)}" if chosen else ""
        raise ExpectationError(f"{place}: an entry is about one of {', '.join(SELECTORS)}{given}")
    _check_name(place, "area", values.get("area"), {failure.area for failure in catalogue.values()})
    _check_name(place, "component", values.get("component"), {*COMPONENTS, *PARTS})
    for profile in values.get("hardware", ()):
        _check_name(place, "hardware", profile, profiles)
    for name, condition in values.get("stack", {}).items():
        if not _can_hold(SpecifierSet(condition)):
            raise ExpectationError(f"{place}: key 'stack': no version of {name} is {condition}")
    if name := values.get("failure"):
        try:
            catalogue.find(name, f"{place}: key 'failure'")
        except CatalogueError as error:
            raise ExpectationError(str(error)) from None
    return Expectation(place=place, lines=lines, **{"stack": {}, **values})


def _check_name(place: str, key: str, name: str | None, known: Collection[str]) -> None:
    if name is None or name in known:
        return
    close = get_close_matches(name, known, 1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
    raise ExpectationError(f"{place}: key {key!r}: {name!r} isn't known; {meant}")


def _can_hold(condition: SpecifierSet) -> bool:
    """Return whether some version fulfils a condition: one that it names, or one beside or between those."""
    named = [one.version.removesuffix(".*") for one in condition]
    near = [version for text in named for version in (text, f"{text}.0.1", f"{text}.dev0")]
    return any(condition.contains(Version(version), prereleases=True) for version in ("0.dev0", "99999", *near))


def _check_apart(entries: Iterable[Expectation]) -> None:
    """Refuse two entries about the same tests under the same condition: one of them would never be looked at."""
    seen: dict[tuple[object, ...], Expectation] = {}
    for entry in entries:
        selector = (entry.failure, entry.area, entry.component, entry.tests)
        key = (*selector, tuple(sorted(entry.stack.items())), entry.hardware, entry.system)
        if key in seen:
            raise ExpectationError(f"{entry.place}: says again what {seen[key].place} says of {entry.about}")
        seen[key] = entry


def _verdicts(value: Any) -> tuple[str, ...]:
    words = toml_table.texts(value)
    if not words or words[0] not in BAD_WORDS or not set(words) <= {*WORDS}:
        raise ValueError(
            f"a list of verdicts, first one that can fail a run ({', '.join(BAD_WORDS)}), then those that it is known "
            "to alternate with"
        )
    return words


def _address(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s<>]+", value):
        raise ValueError("the address of the issue at which it is looked after, such as https://…/issues/12")
    return value


def _names(value: Any) -> tuple[str, ...]:
    names = toml_table.texts([value] if isinstance(value, str) else value)
    if not names:
        raise ValueError("a text, or a list of texts")
    return names


def _systems(value: Any) -> tuple[str, ...]:
    names = _names(value)
    if not set(names) <= SYSTEMS.keys():
        raise ValueError(f"of {', '.join(SYSTEMS)}")
    return names


def _until(value: Any) -> datetime.date | dict[str, str]:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    try:
        return {name: str(Version(version)) for name, version in toml_table.table(value).items()}
    except (ValueError, TypeError):
        raise ValueError('a day such as 2027-01-31, without quotes, or a table such as { vllm = "0.33" }') from None


_REQUIRED: Mapping[str, toml_table.Rule] = {"verdicts": _verdicts, "because": toml_table.text, "issue": _address}
_OPTIONAL: Mapping[str, toml_table.Rule] = {
    **dict.fromkeys(("failure", "area", "component"), toml_table.text),
    **{"tests": _names, "stack": CONDITIONS, "hardware": _names, "system": _systems, "until": _until},
}
