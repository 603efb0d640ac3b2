"""Propose entries for the bad verdicts of records: which tests, and where they are bad. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from pytest_rlregress.failures.verdicts import EXPECTED, Rank, rank
from pytest_rlregress.records.expectations import TABLE, Expectation
from pytest_rlregress.records.record_types import Record, RecordedTest


@dataclass(frozen=True)
class Condition:
    """Where tests are bad: empty for everywhere that is known."""

    stack: tuple[tuple[str, str], ...] = ()
    hardware: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """An entry to be.

    Attributes:
        key: One of the keys that say which tests an entry is about.
        names: The failure, the component, or the tests.
        verdicts: The bad one first, and what the tests alternate with.
        condition: Where.
    """

    key: str
    names: tuple[str, ...]
    verdicts: tuple[str, ...]
    condition: Condition

    def is_about_what(self, entry: Expectation) -> bool:
        """Return whether an entry is about the same tests under the same condition."""
        names = entry.tests or tuple(filter(None, (entry.failure, entry.component)))
        where = tuple(sorted(entry.stack.items())), entry.hardware
        return (names, where) == (self.names, (self.condition.stack, self.condition.hardware))

    def write(self, because: str, issue: str, until: str) -> str:
        """Write the entry as TOML."""
        values: dict[str, str] = {self.key: _text(self.names[0]) if self.key != "tests" else _list(self.names)}
        values["verdicts"] = f"[{', '.join(map(_text, self.verdicts))}]"
        if self.condition.stack:
            values["stack"] = f"{{ {', '.join(f'{_key(name)} = {_text(one)}' for name, one in self.condition.stack)} }}"
        if self.condition.hardware:
            values["hardware"] = f"[{', '.join(map(_text, self.condition.hardware))}]"
        values |= {"because": _text(because), "issue": _text(issue)}
        if until:
            values["until"] = until
        return f"[[{TABLE}]]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


def propose(records: Sequence[Record]) -> list[Proposal]:
    """Propose entries for all that is bad in one of the records and not expected yet.

    Args:
        records: In the order of their runs. Those in which a test was good say under which condition it is bad.
    """
    by_test: dict[str, list[tuple[Record, RecordedTest]]] = {}
    for record in records:
        for test in record.results.tests:
            by_test.setdefault(test.name, []).append((record, test))
    groups: dict[tuple[str, str, tuple[str, ...], Condition], list[str]] = {}
    for name, seen in by_test.items():
        bad = [(record, test) for record, test in seen if is_bad(test)]
        if not bad:
            continue
        good = [(record, test) for record, test in seen if _is_good(test)]
        known_in = frozenset(filter(None, bad[-1][1].extra.components.split(",")))
        condition, wavers = _find_condition([record for record, _ in bad], [record for record, _ in good], known_in)
        words = [test.extra.bad for _, test in bad] + [test.word for _, test in good if wavers]
        extra = bad[-1][1].extra
        key = "component" if extra.component else "failure" if extra.failure else "tests"
        group = key, extra.component or extra.failure, tuple(dict.fromkeys(words)), condition
        groups.setdefault(group, []).append(name)
    said = [test for seen in by_test.values() for _, test in seen if rank(test.word) is not Rank.NOTHING]
    return [
        _name_tests(Proposal(key, (name,), words, where), tests, said)
        for (key, name, words, where), tests in groups.items()
    ]


def _name_tests(proposal: Proposal, names: Sequence[str], said: Iterable[RecordedTest]) -> Proposal:
    """Return a proposal that is about these tests alone: by the failure only if none of its side is good."""
    if proposal.key == "component":
        return proposal
    chosen = {*names}
    sides = {test.extra.side for test in said if test.name in chosen}
    mates = {test.name for test in said if test.extra.failure == proposal.names[0] and test.extra.side in sides}
    if proposal.key == "failure" and mates <= chosen:
        return proposal
    return Proposal("tests", tuple(sorted(names)), proposal.verdicts, proposal.condition)


def is_bad(test: RecordedTest) -> bool:
    """Return whether a test failed its run, by its own act: what fails in teardown says nothing of that."""
    return test.status == "failed" and bool(test.extra.bad)


def is_teardown(test: RecordedTest) -> bool:
    """Return whether a test failed after its act, by what it left behind."""
    return test.status == "failed" and not test.extra.bad


def _is_good(test: RecordedTest) -> bool:
    return test.word != EXPECTED and rank(test.word) in (Rank.GOOD, Rank.DOCUMENTED)


def _find_condition(bad: Sequence[Record], good: Sequence[Record], known_in: Collection[str]) -> tuple[Condition, bool]:
    """Find what tells the runs in which a test was bad from the others; the second: whether nothing does.

    The components in which its failure is known come first: what else differs says less.
    """
    if not good:
        return Condition(), False
    found = {}
    for name in sorted({name for record in (*bad, *good) for name in _versions(record)}):
        wrong, right = ([_versions(record).get(name, "") for record in side] for side in (bad, good))
        if condition := _separate(wrong, right):
            found[name] = condition
    likely = {name: condition for name, condition in found.items() if name in known_in}
    if stack := tuple((likely or found).items()):
        return Condition(stack), False
    profiles, others = ({record.results.extra.hardware.profile or "" for record in side} for side in (bad, good))
    if profiles.isdisjoint(others) and "" not in profiles:
        return Condition(hardware=tuple(sorted(profiles))), False
    return Condition(), True


def _versions(record: Record) -> Mapping[str, str]:
    return record.results.extra.stack.versions


def _separate(bad: Sequence[str], good: Sequence[str]) -> str:
    """Return a condition that the first versions fulfil and no other does; "" if none does."""
    try:
        wrong, right = [Version(one) for one in bad], [Version(one) for one in good]
    except InvalidVersion:  # or not installed there
        return ""
    lowest, highest = min(wrong), max(wrong)
    if max(right) < lowest:
        return f">={lowest.public}"
    if highest < min(right):
        return f"<={highest.public}"
    return f"=={lowest.public}" if lowest == highest and lowest not in right else ""


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else _text(name)


def _list(names: Iterable[str]) -> str:
    return "[\n" + "".join(f"    {_text(name)},\n" for name in names) + "]"
