"""The catalogue: every documented failure, read from ``failures.toml`` in each scenario folder."""

from __future__ import annotations

import re
import signal as signals
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from pytest_rlregress.stack import COMPONENTS, Stack

#: The shipped scenarios, by the path that makes them importable as ``pytest_rlregress.scenarios``.
SHIPPED = Path(__file__).parent / "scenarios"


#: Versions of a component when they do not matter.
ANY = "any"

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
#: A function of one's own: ``package.module:function``.
OWN_FUNCTION = re.compile(f"{_DOTTED}:{_DOTTED}")

#: How a test can end that bears a signature: with an exception, by its process' death, or not at all.
KINDS = ("failed", "crashed", "hung")


class CatalogueError(ValueError):
    """A malformed ``failures.toml``: the message names file, failure and key, and what is allowed."""


@dataclass(frozen=True)
class Signature:
    """What identifies a failure in an exception, a crash or a log; ``verdict.matches`` compares."""

    kind: str | None = None
    exception: str | None = None
    message: re.Pattern[str] | None = None
    frames: tuple[re.Pattern[str], ...] = ()
    signal: str | None = None
    log: re.Pattern[str] | None = None
    note: str = ""


@dataclass(frozen=True)
class Where:
    """A condition on hardware and stack under which another verdict is expected."""

    verdict: str
    hardware: tuple[str, ...] = ()
    stack: Mapping[str, str] | None = None

    def holds(self, profile: str | None, stack: Stack) -> bool:
        """Whether this machine is one of those named."""
        return (not self.hardware or profile in self.hardware) and all(
            stack.satisfies(name, spec) for name, spec in (self.stack or {}).items()
        )


@dataclass(frozen=True)
class Failure:
    """One documented way the stack breaks.

    Attributes:
        components: What its tests need, each with the versions in which the failure is known: ``<0.8``, or ``any``.
        subject: The function that its guards exercise: one of ``pytest_rlregress.remedies``, or
            ``package.module:function``. ``subjects.check`` looks it up.
        seen: When and where, in words.
        measured: What its tests show on the locked stack, and where that differs from what was documented.
        on_card: What came of its tests that need a GPU: on which card, stack and day, or that none has run yet.
    """

    id: str
    title: str
    seen_on: str
    components: Mapping[str, str]
    cause: str
    remedy: str
    source: Path
    seen: str = ""
    measured: str = ""
    on_card: str = ""
    subject: str | None = None
    expected: str = "reproduced"
    expected_where: tuple[Where, ...] = ()
    absent_since: Mapping[str, str] | None = None
    signatures: tuple[Signature, ...] = ()

    def expects(self, profile: str | None, stack: Stack) -> str:
        """Expected verdict of the reproduces side on this profile and stack: ``reproduced`` or ``absent``."""
        if self.gone(stack):
            return "absent"
        return next((w.verdict for w in self.expected_where if w.holds(profile, stack)), self.expected)

    def place(self, key: str) -> str:
        """Where one of its keys was read, for messages."""
        return f"{self.source}: failure {self.id}: key {key!r}"

    @property
    def subject_path(self) -> str | None:
        """Where its subject can be imported from, for people."""
        own = self.subject is None or ":" in self.subject
        return self.subject if own else f"pytest_rlregress.remedies.{self.subject}"

    def gone(self, stack: Stack) -> str | None:
        """The installed release since which the failure is declared absent, or None."""
        for name, since in (self.absent_since or {}).items():
            if stack.satisfies(name, f">={since}"):
                return f"{name} {stack.versions[name]} (absent since {since})"
        return None


_REQUIRED = {"id", "title", "seen_on", "components", "cause", "remedy"}
_OPTIONAL = {"seen", "measured", "on_card", "subject", "expected", "expected_where", "absent_since", "signature"}


class _Entry:
    """One TOML table being read: every complaint names file, failure and key."""

    def __init__(self, path: Path, place: str, table: Mapping[str, Any]) -> None:
        self.path, self.place, self.table = path, place, table

    def error(self, key: str, what: str) -> CatalogueError:
        return CatalogueError(f"{self.path}: {self.place}: key {key!r}: {what}")

    def only(self, allowed: set[str]) -> None:
        for key in self.table.keys() - allowed:
            raise self.error(key, f"unknown; allowed: {', '.join(sorted(allowed))}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.table.get(key, default)
        if not isinstance(value, str) or (not value.strip() and default is None):
            raise self.error(key, "missing" if key not in self.table else "must be a non-empty string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.error(key, "must be a list of strings")
        return tuple(value)

    def pattern(self, key: str, text: str) -> re.Pattern[str]:
        try:
            return re.compile(text, re.DOTALL | re.MULTILINE)
        except re.error as error:
            raise self.error(key, f"bad regular expression {text!r}: {error}") from None

    def versions(
        self, key: str, parse: type[SpecifierSet] | type[Version], wildcard: str | None = None
    ) -> dict[str, str]:
        value = self.table.get(key, {})
        if not isinstance(value, dict):
            example = "0.9" if parse is Version else "<0.9"
            raise self.error(key, f'must be a table such as {{ verl = "{example}" }}')
        for name, text in value.items():
            try:
                _ = text == wildcard or parse(text)
            except (InvalidSpecifier, InvalidVersion, TypeError):
                raise self.error(f"{key}.{name}", f"{text!r} is no {parse.__name__.lower()}") from None
        return dict(value)

    def verdict(self, key: str, default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in ("reproduced", "absent"):
            raise self.error(key, f"{value!r} is not allowed; allowed: reproduced, absent")
        return value

    def subject(self) -> str | None:
        if "subject" not in self.table:
            return None
        value = self.text("subject")
        if not value.isidentifier() and not OWN_FUNCTION.fullmatch(value):
            allowed = "a function of pytest_rlregress.remedies, or package.module:function"
            raise self.error("subject", f"{value!r} is not allowed; allowed: {allowed}")
        return value


def _signature(entry: _Entry) -> Signature:
    entry.only({"kind", "exception", "message", "frames", "signal", "log", "note"})
    table = entry.table
    if not table.keys() & {"exception", "message", "signal", "log"}:
        raise entry.error("signature", "identifies nothing; give exception, message, signal or log")
    name = entry.text("signal") if "signal" in table else None
    if name and name not in signals.Signals.__members__:
        raise entry.error("signal", f"{name!r} is no signal of this system")
    kind = entry.text("kind") if "kind" in table else None
    if kind not in (None, *KINDS):
        raise entry.error("kind", f"{kind!r} is not allowed; allowed: {', '.join(KINDS)}")
    return Signature(
        kind=kind,
        exception=entry.text("exception") if "exception" in table else None,
        message=entry.pattern("message", entry.text("message")) if "message" in table else None,
        frames=tuple(entry.pattern("frames", text) for text in entry.texts("frames")),
        signal=name,
        log=entry.pattern("log", entry.text("log")) if "log" in table else None,
        note=entry.text("note", ""),
    )


def _where(entry: _Entry) -> Where:
    entry.only({"verdict", "hardware", "stack"})
    return Where(entry.verdict("verdict"), entry.texts("hardware"), entry.versions("stack", SpecifierSet))


def _failure(path: Path, number: int, table: Mapping[str, Any]) -> Failure:
    entry = _Entry(path, f"failure {table.get('id', f'number {number}')}", table)
    entry.only(_REQUIRED | _OPTIONAL)
    for key in sorted(_REQUIRED - table.keys()):
        raise entry.error(key, "missing")
    components = entry.versions("components", SpecifierSet, ANY)
    for name in components:
        if name not in COMPONENTS:
            raise entry.error("components", f"{name!r} is unknown; allowed: {', '.join(COMPONENTS)}")
    nested = [
        _Entry(path, f"{entry.place}, {key} {index}", one)
        for key in ("signature", "expected_where")
        for index, one in enumerate(table.get(key, []), 1)
    ]
    return Failure(
        id=entry.text("id"),
        title=entry.text("title"),
        seen_on=entry.text("seen_on"),
        components=components,
        cause=entry.text("cause"),
        remedy=entry.text("remedy"),
        source=path,
        seen=entry.text("seen", ""),
        measured=entry.text("measured", ""),
        on_card=entry.text("on_card", ""),
        subject=entry.subject(),
        expected=entry.verdict("expected", "reproduced"),
        expected_where=tuple(_where(one) for one in nested if "expected_where" in one.place),
        absent_since=entry.versions("absent_since", Version),
        signatures=tuple(_signature(one) for one in nested if "signature" in one.place),
    )


def declare(parser: Any) -> None:
    """Add the option of the commands that read the catalogue: ``options.scenarios`` are more folders to ``load``."""
    parser.add_argument(
        "--scenarios", type=Path, action="append", default=[], metavar="FOLDER", help="scenarios of your own"
    )


class Catalogue(dict[str, Failure]):
    """Failures by id."""

    def find(self, failure_id: str, asked_by: str) -> Failure:
        """The failure of that id.

        Raises:
            CatalogueError: Unknown id, with the closest known ones.
        """
        if failure_id in self:
            return self[failure_id]
        close = get_close_matches(failure_id, self) or sorted(self)
        raise CatalogueError(
            f"{asked_by}: failure id {failure_id!r} is not in the catalogue. Did you mean {' or '.join(close[:3])}? "
            "Ids come from the failures.toml of the shipped scenarios and of the folders in ini rlregress_scenarios."
        )


def load(folders: Iterable[Path]) -> Catalogue:
    """Read every ``failures.toml`` below ``folders``.

    Raises:
        CatalogueError: Malformed TOML, unknown or missing key, bad regular expression, an id given twice.
    """
    catalogue = Catalogue()
    for path in (path for folder in folders for path in sorted(folder.rglob("failures.toml"))):
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CatalogueError(f"{path}: not valid TOML: {error}") from None
        for key in document.keys() - {"failure"}:
            raise CatalogueError(f"{path}: key {key!r}: unknown; the file holds [[failure]] tables only")
        for number, table in enumerate(document.get("failure", []), 1):
            failure = _failure(path, number, table)
            if failure.id in catalogue:
                raise CatalogueError(f"{path}: failure {failure.id}: id also given in {catalogue[failure.id].source}")
            catalogue[failure.id] = failure
    return catalogue
