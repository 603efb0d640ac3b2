"""Read the catalogue: every documented failure, each from ``failure.toml`` in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from pytest_rlregress.failures import signatures
from pytest_rlregress.failures.fidelity import FIDELITIES, SIDES, tested_sides
from pytest_rlregress.failures.signatures import Signature
from pytest_rlregress.stack import COMPONENTS, Stack
from pytest_rlregress.stack.installed import parse_condition
from pytest_rlregress.util import arguments, toml_table

#: The shipped scenarios, by the path that makes them importable as ``pytest_rlregress.scenarios``.
SHIPPED = Path(__file__).parents[1] / "scenarios"
#: In the folder of each failure.
ENTRY = "failure.toml"
#: Says of a component that every version has the failure, of a remedy that it is for every trainer.
ANY = "any"
#: The trainers that a remedy may have words of its own for, as texts call them.
TRAINERS = {"verl": "verl", "trl": "TRL", "prime-rl": "prime-rl"}

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
#: A function of one's own: ``package.module:function``.
OWN_FUNCTION = re.compile(f"{_DOTTED}:{_DOTTED}")

SUBJECT_ALLOWED = "a function of pytest_rlregress.remedies, or package.module:function"

#: The id of a failure: it is typed in commands, and part of the names of files.
ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
ID_ALLOWED = "lower-case words with dashes, such as mask-length-drift"


class CatalogueError(ValueError):
    """A malformed ``failure.toml``: the message names file, failure and key, and what is allowed."""


@dataclass(frozen=True)
class ExpectedWhere:
    """The verdict that is expected on some hardware, or with some versions of the stack."""

    verdict: str
    hardware: tuple[str, ...] = ()
    stack: Mapping[str, str] | None = None

    def holds(self, profile: str | None, stack: Stack) -> bool:
        """Return whether the run's hardware and stack are among them."""
        return (not self.hardware or profile in self.hardware) and all(
            stack.satisfies(name, spec) for name, spec in (self.stack or {}).items()
        )


@dataclass(frozen=True)
class Failure:
    """One documented way the stack breaks.

    Attributes:
        id: The name of its folder, with dashes.
        components: What its tests need, each with the versions in which the failure is known: ``<0.8``, or ``any``.
        remedies: What to do, by trainer in its own keys, and for ``any``.
        subject: The function that its guards exercise: one of ``pytest_rlregress.remedies``, or
            ``package.module:function``. ``pytest_rlregress.harness.subjects.check`` looks it up.
        refuted: What was tried besides and did nothing, or not enough, or made it worse: each ``remedy`` and ``why``.
        seen: When and where, in words.
        fidelity: How real its tests are, but for those whose markers say otherwise: one of ``FIDELITIES``.
        measured: What its tests show on the locked stack, and where that differs from what was documented.
        on_card: What came of its tests that need a GPU: on which card, stack and day, or that none has run yet.
    """

    id: str
    title: str
    seen_on: str
    components: Mapping[str, str]
    cause: str
    remedies: Mapping[str, str]
    source: Path
    refuted: tuple[Mapping[str, str], ...] = ()
    seen: str = ""
    fidelity: str = ""
    measured: str = ""
    on_card: str = ""
    subject: str | None = None
    expected: str = "reproduced"
    expected_where: tuple[ExpectedWhere, ...] = ()
    absent_since: Mapping[str, str] | None = None
    signatures: tuple[Signature, ...] = ()

    def expects(self, profile: str | None, stack: Stack) -> str:
        """Return the verdict expected of the reproduces side here: ``reproduced`` or ``absent``."""
        if self.gone(stack):
            return "absent"
        return next((w.verdict for w in self.expected_where if w.holds(profile, stack)), self.expected)

    @property
    def remedy(self) -> str:
        """What to do, with every trainer."""
        return self.remedy_with("")

    def remedy_with(self, trainer: str) -> str:
        """Return what to do with a trainer; with every one where it isn't known or nothing is said for it."""
        parts = {name: text for name, text in self.remedies.items() if trainer and name in (trainer, ANY)}
        return " ".join(
            text if name == ANY else f"{TRAINERS[name]}: {text}" for name, text in (parts or self.remedies).items()
        )

    def remedy_led_by(self, trainers: Iterable[str]) -> str:
        """Return what to do with every trainer, the given ones first and the others last."""
        names = dict.fromkeys([*trainers, ANY, *TRAINERS])
        return " ".join(
            self.remedies[name] if name == ANY else f"{TRAINERS[name]}: {self.remedies[name]}"
            for name in names
            if name in self.remedies
        )

    @property
    def judging(self) -> tuple[Signature, ...]:
        """The signatures that its tests are judged by: not those that are never an answer."""
        return tuple(one for one in self.signatures if one.clues or not one.confirm)

    @property
    def folder(self) -> Path:
        """Its folder: the entry, its tests and mutants, and helpers that it alone needs."""
        return self.source.parent

    @property
    def area(self) -> str:
        """The name of the folder that it shares with its neighbours."""
        return self.folder.parent.name

    @property
    def documented(self) -> bool:
        """Whether it is a failure: the entry of a training step has none, and guards alone."""
        return bool(self.seen or self.signatures or self.subject)

    def missing_sides(self) -> list[str]:
        """Return the sides that it should have and no test of its folder has."""
        sides = SIDES if self.documented else ("guards",)
        tested = tested_sides(self.folder, self.id)
        return [side for side in sides if side not in tested]

    def place(self, key: str) -> str:
        """Return where one of its keys was read, for messages."""
        return f"{self.source}: failure {self.id}: key {key!r}"

    @property
    def subject_path(self) -> str | None:
        """The path that its subject can be imported from."""
        own = self.subject is None or ":" in self.subject
        return self.subject if own else f"pytest_rlregress.remedies.{self.subject}"

    def gone(self, stack: Stack) -> str | None:
        """Return the installed release, if the failure is declared absent since it or an earlier one."""
        for name, since in (self.absent_since or {}).items():
            if stack.satisfies(name, f">={since}"):
                return f"{name} {stack.versions[name]} (absent since {since})"
        return None


def _by_name(parse: Callable[[Any], object], *, conditions: bool) -> toml_table.Rule:
    """Make a rule for a table of versions, or of conditions on them, by distribution or component."""
    example = '{ verl = "<0.9" }' if conditions else '{ verl = "0.9" }'

    def read(value: Any) -> dict[str, str]:
        for name, text in toml_table.table(value).items():
            try:
                parse(text)
            except (ValueError, TypeError) as problem:
                needed = f", it takes {problem}" if conditions else ""
                raise ValueError(f"a table such as {example}; {name}: {text!r} isn't one{needed}") from None
        return dict(value)

    return read


#: The rule of a table of conditions on versions: ``{ verl = "<0.9" }``.
CONDITIONS = _by_name(parse_condition, conditions=True)


def _components(value: Any) -> dict[str, str]:
    for name in toml_table.table(value):
        if name not in COMPONENTS:
            raise ValueError(f"a table of {', '.join(COMPONENTS)}")
    try:
        CONDITIONS({name: spec for name, spec in value.items() if spec != ANY})
    except ValueError as problem:
        raise ValueError(f"{problem}, or {ANY!r}") from None
    return dict(value)


def _remedies(value: Any) -> dict[str, str]:
    allowed = f"a text, or a text for each of {', '.join((ANY, *TRAINERS))}"
    texts = value if isinstance(value, dict) else {ANY: value}
    if not texts or not texts.keys() <= {ANY, *TRAINERS}:
        raise ValueError(allowed)
    for text in texts.values():
        toml_table.text(text)
    return dict(texts)


def is_subject(text: str) -> bool:
    """Return whether a text can name the function that guards exercise."""
    return text.isidentifier() or OWN_FUNCTION.fullmatch(text) is not None


_VERDICT = toml_table.one_of("reproduced", "absent")
_REQUIRED = dict.fromkeys(("title", "seen_on", "cause"), toml_table.text) | {
    "remedy": _remedies,
    "components": _components,
}
_OPTIONAL = dict.fromkeys(("seen", "measured", "on_card"), toml_table.text) | {
    "fidelity": toml_table.one_of(*FIDELITIES),
    "subject": toml_table.rule(lambda value: isinstance(value, str) and is_subject(value), SUBJECT_ALLOWED),
    "refuted": toml_table.tables,
    "expected": _VERDICT,
    "expected_where": toml_table.tables,
    "absent_since": _by_name(Version, conditions=False),
    "says": lambda value: list(toml_table.texts(value)),
    "where": toml_table.table,
    "signature": toml_table.tables,
}
_REFUTED = dict.fromkeys(("remedy", "why"), toml_table.text)
_WHERE = {"hardware": toml_table.texts, "stack": CONDITIONS}


@cache  # a contained child inherits what its warm server has read
def _failure(path: Path, text: str) -> Failure:
    failure_id = path.absolute().parent.name.replace("_", "-")
    if not ID.fullmatch(failure_id):
        raise CatalogueError(
            f"{path}: the name of its folder is not that of a failure; allowed: {ID_ALLOWED}, in a folder's name with _"
        )
    place = f"{path}: failure {failure_id}"
    values = toml_table.check(toml_table.parse(text, path, CatalogueError), place, CatalogueError, _REQUIRED, _OPTIONAL)

    def tables(key: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each of the tables of a key, with its place."""
        for index, one in enumerate(values.pop(key, ()), 1):
            yield f"{place}, {key} {index}", one

    own_holes = values.pop("where", {})
    if said := values.pop("says", ()):
        values["signature"] = [{"says": said}, *values.get("signature", ())]
    return Failure(
        id=failure_id,
        source=path,
        refuted=tuple(toml_table.check(one, where, CatalogueError, _REFUTED) for where, one in tables("refuted")),
        expected_where=tuple(
            ExpectedWhere(**toml_table.check(one, where, CatalogueError, {"verdict": _VERDICT}, _WHERE))
            for where, one in tables("expected_where")
        ),
        signatures=tuple(
            found
            for where, one in tables("signature")
            for found in signatures.read(one, own_holes, where, CatalogueError)
        ),
        remedies=values.pop("remedy"),
        **values,
    )


def declare(parser: Any) -> None:
    """Add the option of the commands that read the catalogue: ``options.scenarios`` are more folders to ``load``."""
    parser.add_argument(
        "--scenarios",
        type=arguments.folder,
        action="append",
        metavar="FOLDER",
        help="scenarios of your own (default: those that pytest has here, of RLREGRESS_SCENARIOS or ini "
        "rlregress_scenarios)",
    )


class Catalogue(dict[str, Failure]):
    """Failures by id."""

    def find(self, name: str, asked_by: str) -> Failure:
        """Return the failure of that id, which may follow the name of its area: ``batch/mask-length-drift``.

        Raises:
            CatalogueError: Unknown id, with the closest known ones; or another area's.
        """
        area, _, failure_id = name.rpartition("/")
        if failure_id in self:
            found = self[failure_id]
            if area and found.area != area:
                raise CatalogueError(f"{asked_by}: {failure_id} is in {found.area}/, not in {area}/")
            return found
        close = [known for known in self if failure_id in known] or get_close_matches(failure_id, self, cutoff=0.0)
        raise CatalogueError(
            f"{asked_by}: failure id {failure_id!r} is not in the catalogue. Did you mean {' or '.join(close[:3])}? "
            "Ids are the names of folders with a failure.toml, shipped or in the folders of ini rlregress_scenarios."
        )


def load(folders: Iterable[Path]) -> Catalogue:
    """Read every ``failure.toml`` below ``folders``.

    Raises:
        CatalogueError: Malformed TOML, unknown or missing key, bad regular expression, an id given twice.
    """
    catalogue = Catalogue()
    for path in (path for folder in folders for path in sorted(folder.rglob(ENTRY))):
        failure = _failure(path, toml_table.read(path, CatalogueError))
        if failure.id in catalogue:
            raise CatalogueError(f"{path}: failure {failure.id}: id also given in {catalogue[failure.id].source}")
        catalogue[failure.id] = failure
    return catalogue


def area_of(test_file: Path) -> Path:
    """Return the folder whose tests share a process: a failure's, with the failures beside it."""
    folder = test_file.parent
    return folder.parent if (folder / ENTRY).exists() else folder
