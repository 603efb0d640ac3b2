"""What moved in TRL: the fields of its configurations, through transformers' arguments, in every release between."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import metadata
from typing import Any

from pytest_rlregress.commands.moved import features
from pytest_rlregress.commands.moved.fields import find_class, find_defaults, find_refused_values
from pytest_rlregress.commands.moved.findings import (
    Finding,
    Snapshot,
    find_moved,
    find_refused,
    is_given,
)
from pytest_rlregress.commands.moved.index import NoSuchRelease, NotRead
from pytest_rlregress.commands.moved.reading import Answer, Reader
from pytest_rlregress.commands.moved.renames import find_message
from pytest_rlregress.commands.moved.wheels import ARGUMENTS, TRAINER, Release
from pytest_rlregress.commands.preflight.config import PlannedRun
from pytest_rlregress.stack.class_sources import find_fields

#: The methods that are looked at where no command says which.
METHODS = ("sft", "dpo", "grpo", "rloo", "reward")
_OF_PARSER = re.compile(r"(?:dataclass_types = |TrlParser\(|HfArgumentParser\()\(?\(?([\w,\s]+?)[,\s]*\)")


@dataclass(frozen=True)
class Pair:
    """A release of TRL with the transformers that it goes with."""

    trl: Release
    transformers: Release

    @property
    def releases(self) -> list[Release]:
        """Both, in the order in which classes are looked for."""
        return [self.trl, self.transformers]


def read_trl(run: PlannedRun, package: str, ends: tuple[str, str], reader: Reader) -> Answer:
    """Compare two releases of TRL, or of transformers below the installed TRL, for a run.

    Args:
        run: What its words, files or script say; a run without a program is one of each method.
        package: Which of the two moves.
        ends: The release that it comes from, and the one that it goes to.
        reader: Reads releases.

    Raises:
        NotRead: An end could not be read.
        NoSuchRelease: An end doesn't exist.
    """
    answer = Answer()
    pairs = [*_pair(package, ends, reader, answer)]
    named = run.program.removeprefix("trl ") if run.program.startswith("trl ") else ""
    methods = (named,) if named else METHODS
    by_method: dict[str, list[Finding]] = {}
    for method in methods:
        try:
            by_method[method] = _compare(run, method, package, pairs, reader, answer)
        except NotRead as error:
            if named:
                raise
            answer.not_read.append(str(error))
    answer.findings = [*_merge(by_method, bool(named))]
    return answer


def _pair(package: str, ends: tuple[str, str], reader: Reader, answer: Answer) -> Iterator[Pair]:
    """Pair the releases of a range with those of the other package."""
    if package == "transformers":
        here = reader.read("trl", _find_here("trl"), TRAINER)
        for release in reader.read_range("transformers", ends, ARGUMENTS, answer):
            yield Pair(here, release)
        return
    read: dict[str, Release] = {}
    for release in reader.read_range("trl", ends, TRAINER, answer):
        try:
            version = reader.find_allowed(release, "transformers")
            read[version] = read.get(version) or reader.read("transformers", version, ARGUMENTS)
        except (NotRead, NoSuchRelease) as error:
            if release.version in ends:
                raise NotRead(f"the transformers that trl {release.version} goes with: {error}") from None
            answer.not_read.append(f"the transformers that trl {release.version} goes with: {error}")
            continue
        yield Pair(release, read[version])
    if len(read) > 1:
        answer.notes.append(f"transformers {' and '.join(read)}, which these releases of TRL allow, were compared too")


def _find_here(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise NotRead(f"{package} isn't installed here: name its releases, as {package}==1.6.0..1.16.0") from None


def _compare(
    run: PlannedRun, method: str, package: str, pairs: Sequence[Pair], reader: Reader, answer: Answer
) -> list[Finding]:
    """Find what moved for one method."""
    by_script = any((place.file or "").endswith(".py") for place in run.places.values())
    given = {key: run.tree.get(key) for key in run.places if key in run.tree or key in run.refused}
    snapshots = []
    for pair in pairs:
        key = ["trl", pair.trl.key, pair.transformers.key, method, by_script, sorted(given.items(), key=str)]
        made = reader.facts.find(key, partial(_describe, pair, method, given, by_script))
        if not made["classes"] and pair in (pairs[0], pairs[-1]):
            raise NotRead(f"trl {pair.trl.version} has no configuration of {method}")
        if made["classes"]:
            version = pair.transformers.version if package == "transformers" else pair.trl.version
            snapshots.append(Snapshot(version, made["values"], made["refused"], made["packages"]))
    first, last = snapshots[0], snapshots[-1]
    places = {key: str(run.place(key)) for key in run.places}
    refused = [one for one in find_refused(snapshots, package, places) if _is_own(one, first, last, by_script, run)]
    moved = [*find_moved(snapshots, package, [*given])]
    asks = bool(refused) or any(one.change == "moved" and one.after is None for one in moved)
    messages = reader.list_messages([pair.trl for pair in pairs]) if asks else []
    answer.checked.append(f"{len(last.values)} fields of {method} in {len(snapshots)} releases")
    found = [_name(one, last, messages, given.get(one.key)) for one in refused]
    for one in moved:
        finding = features.weigh_trl(one, last.values)
        if one.change == "moved" and one.after is None:  # the value that stands for "not given" of a name that goes
            _, new = find_message(one.key, messages)
            if new in last.values:
                if last.values[new] == one.before or is_given(new, [*given]):
                    continue
                finding = replace(finding, key=new, after=last.values[new], why=f"was {one.key}")
        found.append(finding)
    return found


def _is_own(one: Finding, first: Snapshot, last: Snapshot, by_script: bool, run: PlannedRun) -> bool:
    """Return whether a refused key is TRL's: a script gives other things too, a launcher takes options of its own."""
    if one.change == "refused" or one.key in first.values or one.key not in first.refused:
        return True
    if by_script:
        return one.key in run.refused
    return one.key not in _list_launcher_options()


@cache
def _list_launcher_options() -> frozenset[str]:
    """List the options of accelerate's launcher that is installed here, and those that every release has."""
    found = {"num_processes", "num_machines", "config_file", "accelerate_config", "config", "env", "mixed_precision"}
    try:
        files = metadata.distribution("accelerate").files or ()
        launch = next(file for file in files if str(file).endswith("accelerate/commands/launch.py"))
        found |= {name.replace("-", "_") for name in re.findall(r'"--([\w-]+)"', launch.read_text())}
    except (metadata.PackageNotFoundError, StopIteration, OSError):
        pass
    return frozenset(found)


def _describe(pair: Pair, method: str, given: Mapping[str, Any], by_script: bool) -> dict[str, Any]:
    """Describe a release's configuration of a method: values, whose they are, and which given keys it refuses."""
    names = _list_classes(pair.trl, method)
    if by_script:
        names = [one for one in names if one.endswith("Config") and one != "ModelConfig"]
    values: dict[str, Any] = {}
    packages: dict[str, str] = {}
    refused: dict[str, str] = {}
    for name in reversed(names):
        source = find_class(name, pair.releases, "trl/trainer/")
        if source is None:
            continue
        fields = find_fields(source)
        values |= find_defaults(source, fields, given)
        packages |= {key: one.package for key, one in fields.items() if one.package != "trl"}
        for key, one in fields.items():
            allowed = one.allowed or (() if by_script else one.choices)
            if allowed and isinstance(given.get(key), str) and given[key] not in allowed:
                refused[key] = f"it takes {', '.join(allowed)}"
        for key, bad, good, said in find_refused_values(source):
            value = given.get(key)
            if isinstance(value, str) and (value in bad or (good and value not in good)):
                refused[key] = said
    values = {key: value for key, value in values.items() if not key.startswith("_")}
    refused |= {key: "" for key in given if key not in values and not key.startswith(("no_", "accelerate"))}
    refused |= {
        key: ""
        for key in given
        if key.startswith("no_") and key not in values and key.removeprefix("no_") not in values
    }
    return {"classes": names, "values": values, "packages": packages, "refused": refused}


def _list_classes(release: Release, method: str) -> list[str]:
    """List the classes of a method's parser; where it has no script of its own, its configuration."""
    script = release.read(f"trl/scripts/{method}.py")
    if found := _OF_PARSER.search(script):
        return [name for name in re.split(r"[,\s]+", found[1]) if name]
    for path in sorted(release.paths, key=lambda one: ("experimental" in one, one)):
        if path.endswith(f"/{method}_config.py"):
            return re.findall(r"^class (\w+Config)\b", release.read(path), re.MULTILINE)[:1]
    return []


def _name(finding: Finding, last: Snapshot, messages: Sequence[Sequence[str]], value: Any) -> Finding:
    """Add the new name of a key that is gone or of a value that is refused, and what TRL said of it."""
    if finding.change == "refused":
        message, name = find_message(str(value), messages)
        return replace(finding, instead=name, why=f"{finding.why}. {message}".rstrip(". "))
    message, name = find_message(finding.key, messages)
    if name in last.values:
        return replace(finding, instead=name, why=message)
    return replace(finding, why=message)


def _merge(by_method: Mapping[str, Sequence[Finding]], named: bool) -> Iterator[Finding]:
    """Merge what moved alike in several methods."""
    methods: dict[str, tuple[Finding, list[str]]] = {}
    for method, findings in by_method.items():
        for one in findings:
            methods.setdefault(repr(one), (one, []))[1].append(method)
    for one, among in methods.values():
        all_of_them = named or len(among) == len(by_method)
        yield one if all_of_them else replace(one, place=", ".join(among))
