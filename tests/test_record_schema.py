"""The schema of a record: it describes itself, and refuses what is damaged, wherever that is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from record_checks import SCHEMA, VALID, checked

from pytest_rlregress.records import ctrf, reader
from pytest_rlregress.records.journal import RunState

KEY = {"device": "NVIDIA H100 80GB HBM3", "torch": "2.13", "engine": "vllm 0.31", "attention": "x", "dtype": "bfloat16"}
SERIES = {
    **{key: [0.5, None] for key in ("loss", "grad_norm", "reward", "disagreement_before", "disagreement_after")},
    **{key: [1, 2.5] for key in ("step_seconds", "tokens_per_second")},
}
CLOCKS = {
    "sm": 345,
    "sm_max": 1980,
    "sm_application": None,
    "memory": 2619,
    "memory_max": 2619,
    "memory_application": 1,
}
EXTRA = {
    "format": reader.FORMAT,
    "run": {"arguments": ["--hw=h100", "-n2"], "host": "gpu-7", "workers": 2},
    "stack": {
        "requirements": ["torch==2.13.0"],
        "python": "3.12.1",
        "platform": "Linux",
        "versions": {"torch": "2.13.0"},
        "builds": {"torch": "cu130", "vllm": None},
    },
    "hardware": {
        "profile": "h100",
        "driver": "580.159.04",
        "cpu": {"model": "x", "cores": 8},
        "memory_bytes": 1,
        "devices": [
            {
                **{
                    "name": "NVIDIA H100 80GB HBM3",
                    "memory_bytes": 1,
                    "uuid": "GPU-1",
                    "mig": False,
                    "capability": "9.0",
                },
                **{"clocks_mhz": CLOCKS, "throttle_reasons": ["gpu_idle"], "power_limit_watts": 700.0},
                **{"persistence": True, "ecc": None},
            }
        ],
    },
    "git": {"commit": "ab" * 20, "dirty": False},
}
TEST = {
    **{"name": "training/test_x.py::test_y", "status": "failed", "rawStatus": "failed", "duration": 12},
    **{"filePath": "test_x.py", "message": "m", "trace": "t", "retries": 1, "flaky": False},
    "extra": {
        **{"failure": "miniature-step", "side": "guards", "verdict": "regressed", "note": "n", "subject": "s"},
        "hardware": "h100",
        "measured": {
            "key": KEY,
            "runs": [
                {
                    "level": "token",
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
        "peak_memory": {"test": 5, "VLLM::EngineCore": 7},
    },
}
LIBRARIES = {"libcublas": [{"path": "/a/libcublas.so.12", "version": "12.4.5.8"}]}


def full():
    """A record in which each key is used."""
    run = RunState(ctrf.report([], start=1, stop=1, commit="ab" * 20, extra=EXTRA))
    run.hear({"at": 9, "nodeid": "a", "test": TEST, "libraries": LIBRARIES})
    return json.loads(json.dumps(run.record("complete")))


def places(value, where=()):
    """Where each value of a record is."""
    yield where
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(one, (*where, key))


def at(record, where):
    for key in where:
        record = record[key]
    return record


# What the schema leaves to others: the goldens' own keys.
FREE = ("results", "tests", 0, "extra", "golden", "others")
PLACES = [where for where in places(full()) if where and where != FREE]


def test_it_is_a_schema_and_takes_a_record_with_every_key():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].endswith(f":{reader.FORMAT}")
    checked(full())
    used = {key for where in places(full()) for key in where}
    assert described(SCHEMA) - {"commit"} <= used


def described(schema):
    """The keys that a schema names, once sure that each says what it is."""
    found = set()
    for key, about in schema.get("properties", {}).items():
        names = about.get("$ref", "").rpartition("/")[2]
        assert "description" in about or "description" in SCHEMA["$defs"].get(names, {}), key
        found |= {key} | described(about)
    for inner in (schema.get("items"), schema.get("additionalProperties"), *schema.get("$defs", {}).values()):
        found |= described(inner) if isinstance(inner, dict) else set()
    return found


def test_a_key_that_says_nothing_is_found():
    with pytest.raises(AssertionError, match="naked"):
        described({"items": {"properties": {"naked": {"type": "string"}}}})


@pytest.mark.parametrize("where", PLACES, ids=lambda where: ".".join(map(str, where)))
def test_a_value_that_is_none_is_refused(where):
    record = full()
    at(record, where[:-1])[where[-1]] = [{"not": ["this"]}]
    assert not VALID.is_valid(record)


@pytest.mark.parametrize(
    "where",
    [
        *[("reportId",), ("timestamp",), ("results", "summary", "stop"), ("results", "tests", 0, "rawStatus")],
        *[("results", "extra", key) for key in (*EXTRA, "state", "interrupted")],
        *[("results", "extra", "run", key) for key in EXTRA["run"]],
        *[("results", "extra", "stack", key) for key in (*EXTRA["stack"], "libraries")],
        *[("results", "extra", "hardware", key) for key in EXTRA["hardware"]],
        *[("results", "extra", "hardware", "devices", 0, key) for key in EXTRA["hardware"]["devices"][0]],
        *[("results", "extra", "hardware", "devices", 0, "clocks_mhz", key) for key in CLOCKS],
        *[("results", "extra", "git", key) for key in EXTRA["git"]],
        *[("results", "tests", 0, "extra", "measured", "key", key) for key in KEY],
        *[("results", "tests", 0, "extra", "golden", key) for key in ("state", "key")],
    ],
    ids=lambda where: ".".join(map(str, where[1:] or where)),
)
def test_a_key_that_is_missing_is_refused(where):
    record = full()
    del at(record, where[:-1])[where[-1]]
    assert not VALID.is_valid(record)


@pytest.mark.parametrize(
    "where",
    [
        *[(), ("results",), ("results", "summary"), ("results", "tests", 0), ("results", "environment")],
        *[("results", "extra", *inner) for inner in ((), ("run",), ("stack",), ("hardware",), ("git",))],
        *[("results", "extra", "hardware", "devices", 0), ("results", "tests", 0, "extra", "measured")],
    ],
    ids=lambda where: ".".join(map(str, where)) or "record",
)
def test_a_key_that_nobody_knows_is_refused(where):
    record = full()
    at(record, where)["unheard"] = 1
    assert not VALID.is_valid(record)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("reportId",), "not one"),
        (("timestamp",), "yesterday"),
        (("results", "tests", 0, "status"), "held"),
        (("results", "tests", 0, "duration"), 0.5),
        (("results", "tests", 0, "extra", "verdict"), "fine"),
        (("results", "tests", 0, "extra", "golden", "state"), "fine"),
        (("results", "tests", 0, "extra", "peak_memory", "test"), -1),
        (("results", "extra", "format"), reader.FORMAT + 1),
        (("results", "extra", "state"), "killed"),  # interrupted is false
        (("results", "extra", "interrupted"), True),
        (("results", "extra", "run", "workers"), 0),
        (("results", "extra", "stack", "requirements"), []),
        (("results", "extra", "git", "commit"), "HEAD"),
        (("results", "extra", "hardware", "devices", 0, "capability"), "9"),
    ],
)
def test_a_value_that_means_something_else_is_refused(where, value):
    record = full()
    at(record, where[:-1])[where[-1]] = value
    assert not VALID.is_valid(record)


def test_the_check_of_the_numbers_finds_what_the_schema_cannot():
    record = full()
    record["results"]["summary"].update(passed=2)
    assert VALID.is_valid(record)
    with pytest.raises(AssertionError):
        checked(record)


def test_the_page_on_records_has_the_keys():
    page = (Path(__file__).parents[1] / "docs" / "record.md").read_text(encoding="utf-8")
    extra = SCHEMA["$defs"]["run_context"]["properties"]
    inner = (about for key in ("run", "stack", "hardware", "git") for about in extra[key]["properties"])
    tests = SCHEMA["$defs"]["test"]["properties"]
    own = {*tests, *tests["extra"]["properties"], *SCHEMA["$defs"]["device"]["properties"]}
    for key in {*extra, *inner, *own}:
        assert re.search(rf"[`.\]]{key}[`\[]", page), key
