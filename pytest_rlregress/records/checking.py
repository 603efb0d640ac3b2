"""Check a record that somebody sends: whether it is whole, unedited and of a release, and what it adds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from pytest_rlregress.failures import tried
from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records.reader import RecordError, is_journal, read
from pytest_rlregress.records.record_types import RunExtra
from pytest_rlregress.util.text import clean, join_some, plural, quoted

_HARNESS = "pytest-rlregress"
_PLACE = re.compile(r"^-e |\bfile:///|(?:/(?:home|Users)/|[A-Za-z]:\\+Users\\+)[\w.-]+|/root\b")
_DIGEST = (
    "The digest has no secret: who edits on purpose can make it again. It shows edits by hand and damage, and not who "
    "ran what."
)


@dataclass(frozen=True)
class RecordCheck:
    """What a look at a record found.

    Attributes:
        answers: By question, whether it is so, None where that can't be told, and why.
        adds: What the stacks of the project don't have yet.
        places: Keys whose text names a home folder, or where a package was installed from.
    """

    answers: Mapping[str, tuple[bool | None, str]]
    adds: list[str]
    places: list[str]

    @property
    def exit_code(self) -> int:
        """1 where an answer is no, 3 where one is not known, else 0."""
        found = {answer for answer, _ in self.answers.values()}
        if False in found:
            return 1
        return 3 if None in found else 0


def make_digest(results: Mapping[str, Any]) -> str:
    """Return the digest of a record's results, without the one that is in them."""
    extra = {key: value for key, value in results["extra"].items() if key != "digest"}
    canonical = json.dumps({**results, "extra": extra}, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def check_record(path: Path) -> RecordCheck:
    """Check a record.

    Raises:
        RecordError: The file isn't a record.
    """
    record = read(path)
    extra, tests = record.results.extra, record.results.tests
    if is_journal(path):
        raise RecordError(f"{path}: the journal of a run that did not end. Allowed: a record, whose name ends in .json")
    document = json.loads(path.read_bytes())
    judged = {test.extra.failure for test in tests if test.extra.failure and rank(test.word) is not Rank.NOTHING}
    adds = [f"hardware {extra.hardware.profile}"] if extra.hardware.profile not in (None, "cpu") else []
    adds += tried.list_new_releases(extra.stack.versions)
    new = sorted(failure for failure in judged if not tried.has_recorded_verdict(failure))
    adds += [f"a verdict on {failure}, the first of a recorded stack" for failure in new]
    return RecordCheck(
        {
            "whole": (extra.state == "complete", f"{extra.state}, {plural(len(tests), 'test')}"),
            "unedited": _check_digest(extra.digest, document["results"]),
            "of a release": _check_release(extra),
        },
        adds,
        [key for key, text in _walk(document, "") if _PLACE.search(text)],
    )


def _check_digest(said: str, results: Mapping[str, Any]) -> tuple[bool | None, str]:
    if not said:
        return None, "it has no digest: an older release wrote it"
    if said == make_digest(results):
        return True, "its digest is that of its results"
    return False, "its digest is not that of its results"


def _check_release(extra: RunExtra) -> tuple[bool, str]:
    lines = [line for line in extra.stack.requirements if re.match(rf"{_HARNESS}\b", line)]
    name, equal, version = "".join(lines).partition("==")
    try:
        release = Version(version) if equal and name == _HARNESS else None
    except InvalidVersion:
        release = None
    if release is None or release.is_devrelease or release.local:
        return False, f"no {_HARNESS}==VERSION of a release is installed, but {', '.join(lines) or 'a checkout'}"
    if extra.git and extra.git.dirty:
        return False, "tracked files of the checkout differ from its commit"
    return True, f"{_HARNESS} {release}"


def _walk(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield each text in a document, with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _walk(one, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _walk(one, f"{key}[{number}]")


def tell_check(found: RecordCheck, name: str) -> str:
    """Render a check as Markdown."""
    words = {True: "yes", False: "NO", None: "not known"}
    lines = [f"## {quoted(name)}", ""]
    lines += [f"- {question}: {words[is_so]}: {quoted(clean(why))}" for question, (is_so, why) in found.answers.items()]
    lines.append(f"- adds: {', '.join(map(quoted, found.adds)) or 'nothing'}")
    if found.places:
        lines.append(f"- names places of that machine, look before you send it: {join_some(found.places)}")
    return "\n".join([*lines, "", _DIGEST]) + "\n"


def check_as_json(found: RecordCheck) -> dict[str, Any]:
    """Render a check for scripts; null where an answer is not known."""
    answers = {question: {"answer": is_so, "why": why} for question, (is_so, why) in found.answers.items()}
    return {"format": 1, "answers": answers, "adds": found.adds, "places": found.places}
