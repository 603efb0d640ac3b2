"""What the tests of records share: what is asked of each of them, and made ones."""

from __future__ import annotations

import json

import jsonschema

from pytest_rlregress.records import ctrf, reader
from pytest_rlregress.records.reader import FORMAT

SCHEMA = json.loads(reader.SCHEMA.read_text(encoding="utf-8"))
VALID = jsonschema.Draft202012Validator(SCHEMA)
STATUSES = ("passed", "failed", "skipped", "pending", "other")


def strict(text):
    """What JSON says: Python reads more than that."""

    def refuse(word):
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def checked(record):
    """The record, once sure that it is as its schema says and that its numbers agree."""
    VALID.validate(record)
    summary, tests = record["results"]["summary"], record["results"]["tests"]
    assert summary["stop"] >= summary["start"]
    words = [test["status"] for test in tests]
    assert {word: words.count(word) for word in STATUSES} == {word: summary[word] for word in STATUSES}
    assert summary["tests"] == len(tests)
    return record


def named(results):
    """Its tests, by the last part of their names."""
    return {test["name"].rpartition("::")[2]: test for test in results["tests"]}


def words(results):
    """What came of each of them."""
    return {name: f"{test['status']} {test['rawStatus']}" for name, test in named(results).items()}


def document(stack=("torch==2.9.0",), form=FORMAT, **tests):
    """A record as the first release wrote it, in which each test has this verdict, or this word of pytest's."""
    entries = []
    for name, word in tests.items():
        status = word if word in ("passed", "failed", "skipped", "pending") else "passed"
        entry = {"name": name, "status": status, "rawStatus": status, "duration": 1, "filePath": "test_x.py"}
        if word != status:
            entry["extra"] = {"failure": "short-column", "verdict": word}
        entries.append(entry)
    extra = {"format": form, "stack": {"requirements": list(stack)}, "interrupted": False}
    return json.loads(json.dumps(ctrf.report(entries, start=1, stop=2, commit=None, extra=extra)))
