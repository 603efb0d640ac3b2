"""What the tests of records share: what is asked of each of them, and made ones."""

from __future__ import annotations

import json

import msgspec

from pytest_rlregress.records.record_types import FORMAT, Record

STATUSES = ("passed", "failed", "skipped", "pending", "other")


def strict(text):
    """What JSON says: Python reads more than that."""

    def refuse(word):
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def reread(record):
    """What reading a record and writing it again makes of it."""
    return json.loads(json.dumps(msgspec.to_builtins(msgspec.convert(record, Record))))


def checked(record):
    """The record, once sure that it holds what its types say, no less and no more, and that its numbers agree."""
    assert reread(record) == record
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
    return {
        "reportFormat": "CTRF",
        "specVersion": "0.0.0",
        "reportId": "3f9a1c00-0000-4000-8000-000000000000",
        "timestamp": "2026-03-14T02:15:00Z",
        "generatedBy": "pytest-rlregress 0.1.0",
        "results": {
            "tool": {"name": "pytest", "version": "9.0.1"},
            "summary": {**dict.fromkeys(("tests", *STATUSES), 0), "tests": len(entries), "start": 1, "stop": 2},
            "tests": entries,
            "environment": {"osPlatform": "linux", "osRelease": "6.8.0", "osVersion": "#1"},
            "extra": {"format": form, "stack": {"requirements": list(stack)}, "interrupted": False},
        },
    }
