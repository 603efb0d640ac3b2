"""What uv is asked for a set of packages with some in other versions, and what its answer means: pure but for uv."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_rlregress.environments.requirements import Wishes, broken, closure
from pytest_rlregress.environments.uv import Unbuildable
from pytest_rlregress.stack.locks import Lock


@dataclass(frozen=True)
class ResolveRequest:
    """One question to ``uv pip compile``.

    Attributes:
        files: Name -> text: ``asked.txt`` and those that the options name.
        options: More options.
        complete: Whether an answer of no other lines than those of ``asked.txt`` is the only one possible, so that one
            found in uv's cache alone is as good as any.
    """

    files: Mapping[str, str]
    options: tuple[str, ...] = ()
    complete: bool = False


class Compile(Protocol):
    """Answers a question with the lines of a lock; ``from_source``: names that need not have a wheel."""

    def __call__(self, question: ResolveRequest, from_source: Set[str], /) -> Mapping[str, str]:
        """Raises Unbuildable where there is no answer."""


def resolve(base: Lock, wanted: Mapping[str, str], wishes: Wishes, compile_: Compile, from_source: set[str]) -> Lock:
    """A set of packages with some in the wanted versions, and as little else moved as can be.

    First nothing else may move, though packages may be added. If that is a conflict, everything may, with what is there
    preferred; what no package asks for any more stays if it can. Builds with a label of their own (``2.13.0+cpu``) are
    moved only after that, to builds of the same label. Packages from a folder or URL are never moved; what others ask
    of them is not looked at.

    Requirements that the base itself does not meet are not enforced: those of a package in its version in the base, and
    those of a wanted one on the same package as before. A package that is missing in the base though one asks for it is
    never added.

    Args:
        base: The set that is held fixed.
        wanted: Line by name, as of `lines`.
        wishes: What the packages of the base ask of each other.
        compile_: uv.
        from_source: Packages of the base that have no wheel, as far as known; what is learnt is added.

    Raises:
        Unbuildable: There is no such set; with the resolver's reason.
    """
    terms = _Terms.of(base, wanted, wishes)
    refusals: list[Unbuildable] = []
    for question in _questions(terms):
        try:
            answer = _answer(question, base, compile_, from_source)
            break
        except Unbuildable as error:
            refusals.append(error)
            if "No solution found" not in error.text:
                raise _joined(refusals, question) from None
    else:
        raise _joined(refusals, question)
    left = [line for name, line in terms.pins.items() if name not in answer]
    if left:
        with suppress(Unbuildable):
            kept = replace(question, files={**question.files, **_asked(answer.values(), left)}, complete=True)
            answer = _answer(kept, base, compile_, from_source)
    fixed = {name: line for name, line in base.lines.items() if _is_fixed(line) and name not in wanted}
    return Lock({name: _as_before(line, base.lines.get(name)) for name, line in answer.items()} | fixed)


def _joined(refusals: Sequence[Unbuildable], last: ResolveRequest) -> Unbuildable:
    """With nothing else moved uv's reason is a sentence, with everything moved a page: that one is in the text only."""
    first, *others = refusals
    more = ""
    if others:
        failed = "No solution found" not in others[-1].text
        how = f"with {' '.join(last.options) or 'others moved'}: {others[-1]}"
        more = f"; {how}" if failed else "; nor is there a solution with others moved"
    return Unbuildable(f"{first}{more}", "\n".join(one.text for one in refusals))


def learn(base: Lock, wishes: Wishes, compile_: Compile, from_source: set[str]) -> None:
    """Add to ``from_source`` what has no wheel in the base: uv would avoid it where others may move."""
    terms = _Terms.of(base, {}, wishes)
    question = ResolveRequest({**terms.files, **_asked(terms.pins.values(), terms.asked)}, complete=True)
    with suppress(Unbuildable):
        _answer(question, base, compile_, from_source)


def lines(base: Lock, wanted: Mapping[str, str]) -> dict[str, str]:
    """The lines of wanted versions, by name; where the base has a build with a label, the version with that label."""
    labels = {name: line.partition("+")[2] for name, line in base.lines.items() if not _is_fixed(line)}
    named = {canonicalize_name(name): version for name, version in wanted.items()}
    return {
        name: f"{name}=={version}+{labels[name]}" if labels.get(name) and "+" not in version else f"{name}=={version}"
        for name, version in named.items()
    }


@dataclass(frozen=True)
class _Terms:
    """What all questions for one set have in common.

    Attributes:
        pins: Name -> line of what is held or preferred.
        wanted: The wanted lines.
        asked: Requirements of packages that come from a folder or URL.
        loose: Names of the packages that nothing else in the base asks for.
        files: Exclusions, overrides and uv's configuration.
    """

    pins: Mapping[str, str]
    wanted: tuple[str, ...]
    asked: tuple[str, ...]
    loose: tuple[str, ...]
    files: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, base: Lock, wanted: Mapping[str, str], wishes: Wishes) -> _Terms:
        fixed = {name for name, line in base.lines.items() if _is_fixed(line) and name not in wanted}
        wishes = {name: wishes.get(name, ()) for name in base.lines}
        versions = {name: base.version(name) or "" for name in base.lines}
        unmet = broken(versions, wishes)
        missing = {canonicalize_name(one.name) for asked in unmet.values() for one in asked} - base.lines.keys()
        excluded = (fixed | missing) - wanted.keys()
        overridden = {canonicalize_name(one.name) for name in wanted for one in unmet.get(name, [])}
        overridden &= base.lines.keys() - wanted.keys()

        def asked_by(name: str) -> list[str]:
            met = (one for one in wishes[name] if one not in unmet.get(name, []))
            return [str(one) for one in met if canonicalize_name(one.name) not in excluded]

        tables = [_metadata(name, versions[name], asked_by(name)) for name in unmet.keys() - fixed - wanted.keys()]
        pins = {name: line for name, line in base.lines.items() if name not in fixed and name not in wanted}
        return cls(
            pins=pins,
            wanted=tuple(wanted.values()),
            asked=tuple(one for name in sorted(fixed) for one in asked_by(name)),
            loose=tuple(sorted(_top_level(wishes) & pins.keys())),
            files={
                "excluded.txt": _text(sorted(excluded)),
                "overridden.txt": _text(base.lines[name] for name in sorted(overridden)),
                "uv.toml": _text(sorted(tables)),
            },
        )


def _questions(terms: _Terms) -> Iterator[ResolveRequest]:
    yield ResolveRequest({**terms.files, **_asked(terms.wanted, terms.pins.values(), terms.asked)}, complete=True)
    preferred = {**terms.files, "out.txt": _text(terms.pins.values())}
    held = {name: line for name, line in terms.pins.items() if "+" in line}
    free = [name for name in terms.loose if name not in held]
    yield ResolveRequest({**preferred, **_asked(terms.wanted, held.values(), free, terms.asked)})
    labels = {line.rpartition("+")[2] for line in held.values()}
    if len(labels) == 1:
        asked = _asked(terms.wanted, terms.loose, terms.asked)
        yield ResolveRequest({**preferred, **asked}, options=("--torch-backend", *labels))


def _asked(*requirements: Iterable[str]) -> dict[str, str]:
    return {"asked.txt": _text(dict.fromkeys(chain(*requirements)))}


def _answer(question: ResolveRequest, base: Lock, compile_: Compile, from_source: set[str]) -> Mapping[str, str]:
    """uv's answer; a package without a wheel is built from source only if the base has it so."""
    while True:
        try:
            return compile_(question, from_source)
        except Unbuildable as error:
            named = re.findall(r"([\w.-]+==\S+) has no usable wheels", error.text)
            more = {line.partition("==")[0] for line in named if line in base.lines.values()} - from_source
            if not more:
                raise
            from_source |= more


def _top_level(wishes: Wishes) -> set[str]:
    """Packages from which all others are reached."""
    asked = {canonicalize_name(one.name) for some in wishes.values() for one in some}
    roots = wishes.keys() - asked
    return roots | (wishes.keys() - closure(roots, wishes))


def _is_fixed(line: str) -> bool:
    return re.match(r"[\w.-]+==", line) is None


def _as_before(line: str, before: str | None) -> str:
    """A version is the same however it is spelt."""
    if before is None or _is_fixed(before) or _is_fixed(line):
        return line
    return before if Version(line.partition("==")[2]) == Version(before.partition("==")[2]) else line


def _metadata(name: str, version: str, requires: list[str]) -> str:
    """https://docs.astral.sh/uv/reference/settings/#dependency-metadata: taken for what a distribution itself says."""
    listed = ", ".join(f'"{one}"' for one in requires)
    return f'[[dependency-metadata]]\nname = "{name}"\nversion = "{version}"\nrequires-dist = [{listed}]\n'


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
