"""The types of a record: what is written is read again as it was, and what is damaged is refused, wherever that is."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from installed import CHECKOUT
from record_checks import checked, reread

from pytest_rlregress.records import answer, record_types
from pytest_rlregress.records.record_types import FORMAT, Record, RecordedTest, RunExtra

KEY = {"device": "NVIDIA H100 80GB HBM3", "torch": "2.13", "engine": "vllm 0.31", "attention": "x", "dtype": "bfloat16"}
SERIES = {
    **{key: [0.5, None] for key in ("loss", "grad_norm", "reward", "disagreement_before", "disagreement_after")},
    **{key: [1, 2.5] for key in ("step_seconds", "tokens_per_second")},
}
EXTRA = {
    "format": FORMAT,
    "run": {
        "arguments": ["--hw=h100", "-n2"],
        "selection": ["a.py"],
        "settings": {"a": "b"},
    },
    "stack": {
        "requirements": ["torch==2.13.0"],
        "python": "3.12.1",
        "versions": {"torch": "2.13.0"},
    },
    "hardware": {
        "profile": "h100",
        "driver": "580.159.04",
        "cpu": {"model": "x", "cores": 8},
        "devices": [
            {
                "name": "NVIDIA H100 80GB HBM3",
                "memory_bytes": 1,
                "mig": False,
                "capability": "9.0",
            }
        ],
    },
    "git": {"commit": "ab" * 20, "dirty": False},
}
TEST = {
    **{"name": "training/test_x.py::test_y", "status": "failed", "rawStatus": "failed", "duration": 12},
    **{"filePath": "test_x.py", "message": "m", "trace": "t", "retries": 1, "flaky": False},
    "extra": {
        **{
            "failure": "miniature-step",
            "side": "guards",
            "components": "torch,vllm",
            "verdict": "regressed",
            "note": "n",
            "untried": "u",
            "bad": "regressed",
            "expected": "https://example.org/1 (rlregress-expect.toml:1)",
            "cause": "c",
            "subject": "s",
        },
        "hardware": "h100",
        "component": "torch",
        "fidelity": "stand-in",
        "stand_ins": "s",
        "named": "wandb-key-missing",
        "outcome": {
            **{"kind": "failed", "phase": "call", "exceptions": ["builtins.ValueError"], "message": "m"},
            **{"frames": ["a.py:f"], "signal": "SIGSEGV", "log": "l", "lacks": "s", "mistake": "m", "undriven": "s"},
        },
        "measured": {
            "key": KEY,
            "runs": [
                {
                    "step": "miniature-step",
                    "variant": "token",
                    "steps": 2,
                    **SERIES,
                    "sampled": ["ab"],
                    "device_memory_bytes": 5,
                    "host_memory_bytes": None,
                }
            ],
        },
        "golden": {
            "state": "differs",
            "key": KEY,
            "notes": ["n"],
            "differences": ["d"],
            "used": {"loss": 0.5},
            "others": 1,
        },
    },
}


def full():
    """A record in which each key is used."""
    head = record_types.begun(1, msgspec.convert(EXTRA, RunExtra))
    record = answer.with_tests(head, [msgspec.convert(TEST, RecordedTest)], "complete", 9)
    return json.loads(json.dumps(msgspec.to_builtins(record)))


def places(value, where=()):
    """Where each value of a record is."""
    yield where
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(one, (*where, key))


def at(record, where):
    for key in where:
        record = record[key]
    return record


# The numbers of a step are of its own.
FREE = [("results", "tests", 0, "extra", name) for name in ("measured", "golden")]
PLACES = [where for where in places(full()) if where and not any(where != one and where[:5] == one for one in FREE)]


def test_record_with_every_key_survives_a_round_trip():
    checked(full())
    used = {key for where in places(full()) for key in where}
    assert {name for name, _ in keys(Record)} <= used


def keys(struct):
    """The keys of a type, and of those in it, each with whether it may be missing."""
    found = set()
    for field in msgspec.structs.fields(struct):
        found.add((field.encode_name, not field.required))
        for kind in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                found |= keys(kind)
    return found


@pytest.mark.parametrize("where", PLACES, ids=lambda where: ".".join(map(str, where)))
def test_rejects_a_value_of_the_wrong_type(where):
    record = full()
    at(record, where[:-1])[where[-1]] = [{"not": ["this"]}]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(record, Record)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("results", "extra", "added_later"), 1),
        (("results", "environment"), {"osPlatform": "linux", "commit": "ab"}),
        (("results", "extra", "hardware", "devices", 0, "uuid"), "GPU-1"),
    ],
)
def test_ignores_keys_of_other_releases(where, value):
    record = full()
    more = json.loads(json.dumps(record))
    at(more, where[:-1])[where[-1]] = value
    assert reread(more) == record


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("reportFormat",), "junit"),
        (("results", "tests", 0, "status"), "held"),
        (("results", "tests", 0, "rawStatus"), "fine"),
        (("results", "tests", 0, "duration"), 0.5),
        (("results", "extra", "hardware", "devices", 0, "mig"), "no"),
        (("results", "extra", "state"), "green"),
    ],
)
def test_rejects_a_value_that_is_not_allowed(where, value):
    record = full()
    at(record, where[:-1])[where[-1]] = value
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(record, Record)


def test_the_page_on_records_has_the_keys():
    page = (CHECKOUT / "docs" / "record.md").read_text(encoding="utf-8")
    for key, _ in keys(record_types.RecordedTest) | keys(RunExtra):
        assert re.search(rf"[`.\]]{key}[`\[]", page), key
