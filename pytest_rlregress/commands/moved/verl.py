"""What moved in verl: its configuration as Hydra composes it at both ends, the generated ones between."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from packaging.version import Version

from pytest_rlregress.commands.moved import features
from pytest_rlregress.commands.moved.composition import MAIN, make_job, take_snapshots
from pytest_rlregress.commands.moved.fields import find_class, find_refused_values
from pytest_rlregress.commands.moved.findings import (
    Finding,
    Kind,
    Snapshot,
    find_moved,
    find_refused,
    find_turn,
    is_given,
)
from pytest_rlregress.commands.moved.reading import Answer, Reader
from pytest_rlregress.commands.moved.renames import find_message, find_same_name, find_translations, translate
from pytest_rlregress.commands.moved.wheels import TRAINER, Release
from pytest_rlregress.commands.preflight.config import PlannedRun
from pytest_rlregress.commands.preflight.stops import match_values
from pytest_rlregress.stack.class_sources import UNKNOWN, ClassSource, find_fields


def read_verl(run: PlannedRun, ends: tuple[str, str], reader: Reader) -> Answer:
    """Compare two releases of verl for a run.

    Args:
        run: What its words and files say.
        ends: The release that it comes from, and the one that it goes to.
        reader: Reads releases.

    Raises:
        NotRead: An end could not be read or composed.
        NoSuchRelease: An end doesn't exist.
    """
    answer = Answer()
    releases = reader.read_range("verl", ends, TRAINER, answer)
    program = run.program if run.program.startswith("verl.") else MAIN
    taken = take_snapshots(releases, program, make_job(run), reader, answer)
    snapshots = [_add_refusals(one, release, run) for one, release in taken]
    kept = {one.version: one for one in releases}
    _judge(run, snapshots, [kept[one.version] for one in snapshots], reader, answer)
    answer.checked.append(f"{len(run.places)} keys of yours" if run.places else "every key")
    answer.checked.append(f"{len(snapshots[-1].values)} defaults of {len(snapshots)} releases of verl")
    return answer


def _add_refusals(snapshot: Snapshot, release: Release, run: PlannedRun) -> Snapshot:
    """Add the keys and values that a release's code refuses after Hydra has accepted them."""
    refused = dict(snapshot.refused)
    allowed = match_values("verl", "", lambda pattern: _read_matching(release, pattern))
    classes: dict[str, ClassSource | None] = {}
    for key in run.places:
        table, _, name = key.rpartition(".")
        target = str(snapshot.values.get(f"{table}._target_") or "")
        value = run.get(key)
        if key in refused or isinstance(value, dict):
            continue
        if target not in classes:
            near = target.rpartition(".")[0].replace(".", "/")
            classes[target] = find_class(target.rpartition(".")[2], [release], near) if target else None
        source = classes[target]
        if source and run.sign(key) in ("+", "++") and name not in find_fields(source):
            refused[key] = f"{target.rpartition('.')[2]} takes no {name}"
        elif isinstance(value, str) and key in allowed and value not in allowed[key]:
            loads = run.get("actor_rollout_ref.model.external_lib") or run.get("custom_reward_function.path")
            if not loads:
                refused[key] = f"it takes {', '.join(allowed[key])}"
        elif source and isinstance(value, str):
            for checked, bad, good, said in find_refused_values(source):
                if checked == name and (value in bad or (good and value not in good)):
                    refused[key] = said
    return replace(snapshot, refused=refused)


def _read_matching(release: Release, pattern: str) -> Iterator[str]:
    depth = pattern.count("/")
    for path in release.paths:
        if path.count("/") == depth and fnmatch.fnmatch(path, pattern):
            yield release.read(path)


def _judge(
    run: PlannedRun, snapshots: Sequence[Snapshot], releases: Sequence[Release], reader: Reader, answer: Answer
) -> None:
    """Find what moved between the snapshots, with the new names."""
    first, last = snapshots[0], snapshots[-1]
    given = [key for key in run.places if key in {*last.refused} or run.get(key) is not None or run.sign(key)]
    places = {key: str(run.place(key)) for key in run.places}
    translations: dict[str, str] = {}
    for release in (releases[0], releases[-1]):
        known = ["translations", release.key] if release.key else None
        translations |= reader.facts.find(known, partial(find_translations, release))
    refused = [*find_refused(snapshots, "verl", places)]
    moved = [*find_moved(snapshots, "verl", given)]
    emptied = any(one.after is None for one in moved)
    messages = reader.list_messages(releases) if refused or emptied else []
    for finding in refused:
        answer.findings.append(_name(finding, snapshots, translations, messages))
    for finding in moved:
        new = ""
        if finding.after is None:  # the value that stands for "not given" of a name that goes
            table, _, name = finding.key.rpartition(".")
            new = translate(finding.key, translations) or f"{table}.{find_message(name, messages)[1]}"
        if new in last.values:
            finding = replace(finding, key=new, after=last.values.get(new, UNKNOWN), why=f"was {finding.key}")
            if finding.after in (finding.before, UNKNOWN) or is_given(new, given):
                continue
        answer.findings.append(features.weigh_verl(finding, last.values))
    answer.findings += _find_vanished(first, snapshots, releases, translations, given)
    answer.findings += _find_new(first, snapshots, releases, given)


def _name(
    finding: Finding, snapshots: Sequence[Snapshot], translations: Mapping[str, str], messages: Sequence[Sequence[str]]
) -> Finding:
    """Add the new name of a key that is refused."""
    known, old = snapshots[-1].values, snapshots[0].values
    key = finding.key
    if finding.change == "refused" or key in known:  # the value, or a plus sign that is too much
        why = finding.why
        if finding.change == "gone":
            why = "; ".join(filter(None, ("the key is there: write it without the plus sign", why)))
        return replace(finding, change="refused", why=why)
    new = translate(key, translations)
    if new in known or any(one.startswith(f"{new}.") for one in known if new):
        return replace(finding, instead=new)
    message, name = find_message(key.rpartition(".")[2], messages)
    table = key.rpartition(".")[0]
    beside = name if "." in name else f"{table}.{name}".lstrip(".")
    if name and beside in known:
        return replace(finding, instead=beside, why=message)
    same = find_same_name(key, known, old)
    return replace(finding, instead=same, sure=False, why=message if name or not same else "")


def _find_vanished(
    first: Snapshot,
    snapshots: Sequence[Snapshot],
    releases: Sequence[Release],
    translations: Mapping[str, str],
    given: Sequence[str],
) -> Iterator[Finding]:
    """Find the defaults that a run inherits and that are gone, and not the same under another name."""
    last = snapshots[-1]
    known, old = last.values, first.values
    for key, value in old.items():
        if key in known or value in (None, UNKNOWN, "", {}) or value == [] or is_given(key, given):
            continue
        if key.endswith("._target_") or any(one.startswith(f"{key}.") for one in known):
            continue
        new = translate(key, translations) or find_same_name(key, known, old)
        if new and known.get(new) == value:
            continue
        turn = find_turn(snapshots, lambda one: key not in one.values)  # noqa: B023
        forward = Version(first.version) < Version(last.version)
        is_switch = forward and isinstance(value, bool) and key.rpartition(".")[2] in ("enable", "enabled")
        why = ""
        if is_switch:
            table = key.split(".")[-2]
            files = sorted(
                path for path in releases[0].paths if path.endswith(".py") and table in releases[0].read(path)
            )
            why = f"read in {', '.join(files[:2])}" if files else ""
        finding = Finding(Kind.DEFAULT, key, "vanished", value, None, turn, "verl", new, False, why, concerns=is_switch)
        yield features.weigh_verl(finding, old)


def _find_new(
    first: Snapshot, snapshots: Sequence[Snapshot], releases: Sequence[Release], given: Sequence[str]
) -> Iterator[Finding]:
    """Find the keys that are new and switch something on, where no default in the older code did so already."""
    last, old = snapshots[-1], first.values
    for key, value in last.values.items():
        table, _, name = key.rpartition(".")
        if value is not True or key in old or is_given(key, given):
            continue
        if not any(one.startswith(f"{table}.") for one in old):  # a table that is new
            continue
        if find_same_name(key, old, last.values) and old.get(find_same_name(key, old, last.values)) is True:
            continue
        target = str(old.get(f"{table}._target_") or "")
        source = find_class(target.rpartition(".")[2], releases[:1]) if target else None
        hidden = find_fields(source).get(name) if source else None
        if hidden and hidden.value is True:
            continue
        before = hidden.value if hidden else None
        turn = find_turn(snapshots, lambda one: one.values.get(key) is True)  # noqa: B023
        switches = bool(hidden) or re.match(r"use_|enable", name) is not None
        change = "moved" if hidden else "new"
        finding = Finding(Kind.DEFAULT, key, change, before, True, turn, "verl", concerns=switches)
        yield features.weigh_verl(finding, last.values)
