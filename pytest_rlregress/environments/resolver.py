"""Resolve a lock with some packages moved, and as little else as can be."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_rlregress.environments.uv import Installer, Unbuildable
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.stack.requirements import Requirements, find_dependencies, find_unmet


@dataclass(frozen=True)
class _Request:
    """What ``uv pip compile`` is given.

    Attributes:
        files: Name -> text: ``requirements.in`` and those that the options name.
        options: More options.
        complete: Whether an answer of no other lines than those of ``requirements.in`` is the only one possible: then
            one that is found in uv's cache alone is as good as any.
    """

    files: Mapping[str, str]
    options: tuple[str, ...] = ()
    complete: bool = False


class Resolver:
    """Resolves locks with uv; a package without a wheel is built from source only if the base has it so."""

    def __init__(self, installer: Installer) -> None:
        self._installer = installer
        self._from_source: set[str] = set()  # of what is known
        self._prepared: set[str] = set()  # the bases that were looked through for it

    def resolve(
        self,
        base: Lock,
        wanted: Mapping[str, str],
        requires: Requirements,
        *,
        exact: bool = False,
        newest: Collection[str] = (),
        conditions: Iterable[str] = (),
    ) -> Lock:
        """Resolve a lock with some packages in the wanted versions, and as little else moved as can be.

        First nothing else may move, though packages may be added. If that is a conflict, everything may, with what is
        there preferred; what no package requires any more stays if it can. Builds with a label of their own
        (``2.13.0+cpu``) are moved only after that, to builds of the same label. Packages from a folder or URL are never
        moved; what others require of them is not looked at.

        Requirements that the base itself does not meet are not enforced: those of a package in its version in the base,
        and those of a wanted one on the same package as before. A package that is missing in the base though one
        requires it is never added.

        Args:
            base: The set that is held fixed.
            wanted: Version by name.
            requires: What the packages of the base require of each other.
            exact: Nothing else is moved or added, whatever the wanted ones require.
            newest: Packages that are moved to the newest version that all else allows, as of ``list_movable``.
            conditions: Conditions on versions, whatever the base has: ``transformers<6``.

        Raises:
            Unbuildable: There is no such set; with the resolver's reason.
            RequestError: The disk is full.
        """
        lines = _pin_versions(base, wanted)
        if exact:
            return base.having(lines)
        if base.digest not in self._prepared:
            self._prepared.add(base.digest)
            with suppress(Unbuildable):  # uv would avoid what has no wheel where others may move
                self._compile(next(_make_requests(base, {}, requires)), base)
        refusals: list[Unbuildable] = []
        for request in _make_requests(base, lines, requires, newest, conditions):
            try:
                answer = self._compile(request, base)
                break
            except Unbuildable as error:
                refusals.append(error)
                if not error.conflict:
                    raise _join(refusals, request) from None
        else:
            raise _join(refusals, request)
        left = [line for name, line in base.lines.items() if not (_is_fixed(line) or name in answer or name in lines)]
        if left:
            with suppress(Unbuildable):
                kept = replace(request, files={**request.files, **_input_file(answer.values(), left)}, complete=True)
                answer = self._compile(kept, base)
        fixed = {name: line for name, line in base.lines.items() if _is_fixed(line) and name not in lines}
        return Lock({name: _keep_spelling(line, base.lines.get(name)) for name, line in answer.items()} | fixed)

    def compile(self, lines: Iterable[str], conditions: Iterable[str] = ()) -> Mapping[str, str]:
        """Resolve some requirements alone, to a line by name.

        Raises:
            Unbuildable: They cannot be met together.
        """
        return self._run(_Request({"requirements.in": _join_lines(lines), "constraints.txt": _join_lines(conditions)}))

    def _compile(self, request: _Request, base: Lock) -> Mapping[str, str]:
        """Compile a request, from uv's cache if that is as good; learn which packages of the base have no wheel."""
        while True:
            try:
                if request.complete and not self._installer.offline:
                    with suppress(Unbuildable):  # saves a second of asking the index what did not change
                        answer = self._run(request, offline=True)
                        if set(answer.values()) <= set(request.files["requirements.in"].splitlines()):
                            return answer
                return self._run(request)
            except Unbuildable as error:
                named = re.findall(r"([\w.-]+==\S+) has no usable wheels", error.text)
                more = {line.partition("==")[0] for line in named if line in base.lines.values()} - self._from_source
                if not more:
                    raise
                self._from_source |= more

    def _run(self, request: _Request, *, offline: bool = False) -> Mapping[str, str]:
        named = {"--overrides": "overridden.txt", "--excludes": "excluded.txt", "--constraints": "constraints.txt"}
        written = self._installer.pip(
            *("compile", "requirements.in", "--output-file", "out.txt", "--python", sys.executable),
            *(part for pair in named.items() if pair[1] in request.files for part in pair),
            *("--only-binary", ":all:", *(f"--no-binary={name}" for name in sorted(self._from_source))),
            *("--no-header", "--no-annotate", *request.options),
            files=request.files,
            offline=offline,
        )
        lines = (line.partition(" ;")[0] for line in written.splitlines())
        return {re.split("==| @ ", line)[0]: line for line in lines}


def _join(refusals: Sequence[Unbuildable], last: _Request) -> Unbuildable:
    """With nothing else moved uv's reason is a sentence, with everything moved a page: that is in the conflict only."""
    first, *others = refusals
    if not others:
        return first
    lines = [f"With all else held as it is here: {first}."]
    lines += [f"With all else free but builds such as +cpu: {one}." for one in others if one.conflict][-1:]
    more = "nor is there a solution with others moved"
    if not others[-1].conflict:
        more = f"with {' '.join(last.options) or 'others moved'}: {others[-1]}"
        lines.append(f"{more[0].upper()}{more[1:]}.")
    return Unbuildable(f"{first}; {more}", "\n".join(one.text for one in refusals), "\n".join(lines))


def _pin_versions(base: Lock, wanted: Mapping[str, str]) -> dict[str, str]:
    """Make the lines of wanted versions, by name; where the base has a build with a label, with that label."""
    labels = {name: line.partition("+")[2] for name, line in base.lines.items() if not _is_fixed(line)}
    named = {canonicalize_name(name): version for name, version in wanted.items()}
    return {
        name: f"{name}=={version}+{labels[name]}" if labels.get(name) and "+" not in version else f"{name}=={version}"
        for name, version in named.items()
    }


def list_movable(base: Lock, requires: Requirements) -> set[str]:
    """List what may be moved to its newest version.

    Held are packages from a folder or URL, builds with a label of their own (``2.13.0+cpu``), and those of which the
    base does not meet what others require of them.
    """
    versions = {name: base.version(name) or "" for name in base.lines}
    unmet = {canonicalize_name(one.name) for some in find_unmet(versions, requires).values() for one in some}
    return {name for name, line in base.lines.items() if not _is_fixed(line) and "+" not in line} - unmet


def _make_requests(
    base: Lock,
    wanted: Mapping[str, str],
    requires: Requirements,
    newest: Collection[str] = (),
    conditions: Iterable[str] = (),
) -> Iterator[_Request]:
    """Make the requests for a set: with nothing else moved, then all but builds with a label, then these too."""
    fixed = {name for name, line in base.lines.items() if _is_fixed(line) and name not in wanted}
    requires = {name: requires.get(name, ()) for name in base.lines}
    versions = {name: base.version(name) or "" for name in base.lines}
    unmet = find_unmet(versions, requires)
    missing = {canonicalize_name(one.name) for some in unmet.values() for one in some} - base.lines.keys()
    excluded = (fixed | missing) - wanted.keys()
    free = set(newest) - wanted.keys()
    overridden = {canonicalize_name(one.name) for name in wanted.keys() | free for one in unmet.get(name, [])}
    overridden &= base.lines.keys() - wanted.keys()

    def list_required(name: str) -> list[str]:
        met = (one for one in requires[name] if one not in unmet.get(name, []))
        return [str(one) for one in met if canonicalize_name(one.name) not in excluded]

    tables = [
        _dependency_metadata(name, versions[name], list_required(name)) for name in unmet.keys() - fixed - wanted.keys()
    ]
    files = {
        "excluded.txt": _join_lines(sorted(excluded)),
        "overridden.txt": _join_lines(base.lines[name] for name in sorted(overridden)),
        "constraints.txt": _join_lines(conditions),
        "uv.toml": _join_lines(sorted(tables)),
    }
    pins = {name: line for name, line in base.lines.items() if name not in fixed | free | wanted.keys()}
    roots = _find_roots(requires)
    asked = (*wanted.values(), *sorted(roots & free))
    required = [one for name in sorted(fixed) for one in list_required(name)]
    yield _Request({**files, **_input_file(asked, pins.values(), required)}, complete=True)
    files["out.txt"] = _join_lines(pins.values())  # what is there is preferred
    loose = sorted(roots & pins.keys())
    held = {name: line for name, line in pins.items() if "+" in line}
    others = [name for name in loose if name not in held]
    yield _Request({**files, **_input_file(asked, held.values(), others, required)})
    labels = {line.rpartition("+")[2] for line in held.values()}
    if len(labels) == 1:
        yield _Request({**files, **_input_file(asked, loose, required)}, options=("--torch-backend", *labels))


def _input_file(*requirements: Iterable[str]) -> dict[str, str]:
    return {"requirements.in": _join_lines(dict.fromkeys(chain(*requirements)))}


def _find_roots(requires: Requirements) -> set[str]:
    """Find packages from which all others are reached."""
    required = {canonicalize_name(one.name) for some in requires.values() for one in some}
    roots = requires.keys() - required
    return roots | (requires.keys() - find_dependencies(roots, requires))


def _is_fixed(line: str) -> bool:
    return re.match(r"[\w.-]+==", line) is None


def _keep_spelling(line: str, before: str | None) -> str:
    """Keep the line of before where it is the same version, spelt otherwise."""
    if before is None or _is_fixed(before) or _is_fixed(line):
        return line
    return before if Version(line.partition("==")[2]) == Version(before.partition("==")[2]) else line


def _dependency_metadata(name: str, version: str, requires: list[str]) -> str:
    """https://docs.astral.sh/uv/reference/settings/#dependency-metadata: taken for what a distribution itself says."""
    listed = ", ".join(f'"{one}"' for one in requires)
    return f'[[dependency-metadata]]\nname = "{name}"\nversion = "{version}"\nrequires-dist = [{listed}]\n'


def _join_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
