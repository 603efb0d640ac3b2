"""Histories of records for tests and benchmarks: made up, in the format that ``harness.record_writer`` writes.

    make(folder, nights=30, platforms=("cpu", "h100"), events=[
        Event("upgrade", 12, "vllm", "0.32.0"),
        Event("bad", 12, guard, "regressed", platform="h100"),
        Event("no run", 20, until=22),
    ])

Nights count from 0; the last is named ``LAST`` unless told otherwise. What an event of each kind does:

=============  ==========================  =================================================================
kind           subject, value              what happens (for ever, or until the night that ``until`` names)
=============  ==========================  =================================================================
upgrade        package, version            that version is installed; no version: the package is gone
driver         -, version                  the GPU's driver
python         -, version                  Python itself
device         -, name                     the GPU's name
commit         -, hexadecimal digits       the checkout's commit
dirty          -                           the checkout is dirty
bad            test, word (``regressed``)  what comes out of the test
gone           test                        the test is not there
subject        test, function              what is under a guard
setting        name, value                 a setting of the run, such as an ini value
measure        key of a run, factor        what the miniature step measured is so many times as large
unmeasured     key of a run, (``null``)    the miniature step lacks it; with ``null`` it is not finite
-------------  --------------------------  -----------------------------------------------------------------
no run         -                           (one night) no run
again          -                           (one night) a second run, three hours later, nothing changed
flake          test, word (``regressed``)  (one night) so in the first of two runs, good in the second
interrupted    -                           (one night) ended after two thirds of its tests
killed         -                           (one night) the same, and only its journal is left
=============  ==========================  =================================================================

``cases(count)`` names the tests, real ones of the shipped scenarios, with the side and the failure of each and what
usually comes out of it. The same arguments give the same history to the byte.
"""

from __future__ import annotations

import datetime
import itertools
import json
import random
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlregress.failures.catalogue import SHIPPED
from pytest_rlregress.records import answer, record_types
from pytest_rlregress.records.reader import JOURNAL
from pytest_rlregress.records.record_types import FORMAT, RecordedTest, RunExtra
from pytest_rlregress.stack import COMPONENTS, locks

LAST = datetime.date(2026, 11, 20)
GOLDEN = "training/golden/test_golden.py::test_golden[token]"
DEVICES = {
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "h20": "NVIDIA H20",
    "a100": "NVIDIA A100-SXM4-80GB",
    "b200": "NVIDIA B200",
}
ONE_NIGHT = {"no run", "again", "flake", "interrupted", "killed"}
FAILED = {"regressed", "changed", "returned", "crashed", "hung", "failed"}
_SIDED = re.compile(r'@pytest\.mark\.(reproduces|guards)\("([^"]+)"\)\n(?:(?!def )[^\n]*\n)*?def (test_\w+)\(')


@dataclass(frozen=True)
class Event:
    """Something that happens on a night, in one platform or in all: see the table above."""

    kind: str
    night: int
    subject: str = ""
    value: str = ""
    platform: str | None = None
    until: int | None = None

    def holds(self, night: int, platform: str) -> bool:
        """Whether it does on a night."""
        end = self.night + 1 if self.until is None and self.kind in ONE_NIGHT else self.until
        return self.platform in (None, platform) and self.night <= night and (end is None or night < end)


@dataclass(frozen=True)
class Case:
    """A test of the history, and the word that usually comes out of it."""

    name: str
    file: str
    failure: str | None
    side: str | None
    word: str
    milliseconds: int
    text: str


def make(
    folder: Path,
    *,
    nights: int = 30,
    platforms: Sequence[str] = ("cpu", "h100"),
    tests: int | Sequence[Case] = 40,
    seed: int = 0,
    events: Sequence[Event] = (),
    last: datetime.date = LAST,
    traces: bool = True,
    packages: locks.Lock | None = None,
) -> list[Path]:
    """Write one record a platform and night, and return the files in the order of their runs.

    Args:
        folder: Made if it is not there.
        nights: How many, up to and including the last.
        platforms: Hardware profiles.
        tests: In each run: so many of the shipped scenarios, of which a real one has 330, or made-up ones.
        seed: Of durations and of what was measured.
        events: What happens.
        last: The date of the last night.
        traces: Whether documented failures have their text, as in real records: 2 to 3 kB each. Failures always do.
        packages: What is installed before any upgrade; by default what the project is developed with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for night in range(nights):
        date = last - datetime.timedelta(days=nights - 1 - night)
        for platform in platforms:
            now = [event for event in events if event.holds(night, platform)]
            kinds = {event.kind for event in now}
            runs = 0 if "no run" in kinds else 1 + bool(kinds & {"again", "flake"})
            for attempt in range(runs):
                drawn = random.Random(f"{seed} {platform} {night} {attempt}")
                begin = datetime.datetime.combine(date, datetime.time(2 + 3 * attempt), datetime.UTC)
                start = round(begin.timestamp() * 1000) + 60_000 * platforms.index(platform) + drawn.randrange(60_000)
                found = record(platform, start, tests, now, drawn, attempt, traces=traces, packages=packages)
                path = _write(folder, start, found)
                written.append((start, path))
    return [path for _, path in sorted(written)]


def cases(count: int = 40) -> list[Case]:
    """The tests of a history, the golden's first."""
    golden = Case(GOLDEN, _file(GOLDEN), None, None, "passed", 40_000, "")
    return [golden, *itertools.islice(_scenarios(), count - 1)]


def record(
    platform: str,
    start: int,
    tests: int | Sequence[Case],
    events: Sequence[Event] = (),
    drawn: random.Random | None = None,
    attempt: int = 0,
    *,
    traces: bool = True,
    packages: locks.Lock | None = None,
) -> dict[str, Any]:
    """One record, begun at ``start`` in ms since 1970; its events all hold."""
    drawn = drawn or random.Random(f"{platform} {start}")
    gone = {event.subject for event in events if event.kind == "gone"}
    words = {
        e.subject: e.value or "regressed" for e in events if e.kind == "bad" or (e.kind == "flake" and not attempt)
    }
    last = {kind: [e.value for e in events if e.kind == kind][-1:] for kind in ("driver", "device", "commit", "python")}
    kinds = {event.kind for event in events}
    factors = {event.subject: float(event.value) for event in events if event.kind == "measure"}
    unmeasured = {event.subject: event.value for event in events if event.kind == "unmeasured"}
    settings = {event.subject: event.value for event in events if event.kind == "setting"}
    subjects = {event.subject: event.value for event in events if event.kind == "subject"}
    versions = {event.subject: event.value or None for event in events if event.kind == "upgrade"}
    device = (last["device"] or [DEVICES.get(platform)])[0]
    chosen = [test for test in (cases(tests) if isinstance(tests, int) else tests) if test.name not in gone]
    entries = [_entry(test, words.get(test.name, test.word), platform, drawn, traces, factors) for test in chosen]
    for entry in entries:
        for run in entry.get("extra", {}).get("measured", {}).get("runs", ()):
            for key, value in unmeasured.items():
                run[key] = [None for _ in run[key]]
                if not value:
                    del run[key]
        if entry["name"] in subjects:
            entry["extra"]["subject"] = subjects[entry["name"]]
    state = next((kind for kind in ("killed", "interrupted") if kind in kinds), "complete")
    if state != "complete":
        _stop(entries, 2 * len(entries) // 3)
    commit = (last["commit"] or ["3f9a1c"])[0].ljust(40, "0")
    lock = (packages or _lock()).having({name: version and f"{name}=={version}" for name, version in versions.items()})
    extra = {
        "format": FORMAT,
        "stack": {
            "requirements": lock.text.splitlines(),
            "python": (last["python"] or ["3.11.7"])[0],
            "versions": {
                name: version
                for name, component in COMPONENTS.items()
                for version in [next(filter(None, map(lock.version, component.distributions)), None)]
                if version
            },
        },
        "hardware": {
            "profile": platform,
            "driver": (last["driver"] or ["570.86.10"])[0] if device else None,
            "devices": [_device(device)] if device else [],
            "cpu": {"model": "AMD EPYC 9454 48-Core Processor", "cores": 48},
        },
        "git": {"commit": commit, "dirty": "dirty" in kinds},
        "run": {
            "arguments": [f"--hw={platform}", "--rl-record-dir=records"],
            "selection": [],
            "settings": {"ini file": "pyproject.toml", **settings},
        },
    }
    head = record_types.begun(start, msgspec.convert(extra, RunExtra))
    stop = start + sum(entry["duration"] for entry in entries) + 4_000
    found = answer.with_tests(head, msgspec.convert(entries, list[RecordedTest]), state, stop)
    found.report_id = str(uuid.UUID(int=drawn.getrandbits(128), version=4))
    return msgspec.to_builtins(found)


def _write(folder: Path, start: int, found: dict[str, Any]) -> Path:
    moment = datetime.datetime.fromtimestamp(start / 1000, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    platform = found["results"]["extra"]["hardware"]["profile"]
    name = f"{moment}-{platform}-{found['reportId'][:6]}"
    if found["results"]["extra"]["state"] == "killed":
        path = folder / f"{name}{JOURNAL}"
        tests, found["results"]["tests"] = found["results"]["tests"], []
        lines = [{"at": found["results"]["summary"]["stop"], "nodeid": test["name"], "test": test} for test in tests]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in (found, *lines)), encoding="utf-8")
    else:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return path


def _stop(entries: list[dict[str, Any]], begun: int) -> None:
    """As if the run had ended during one of its tests."""
    for entry in entries[begun:]:
        entry.update(status="pending", rawStatus="pending", duration=0)
        for field in ("message", "trace", "extra"):
            entry.pop(field, None)
    entries[begun].update(status="other", rawStatus="interrupted")


def _scenarios() -> Iterator[Case]:
    """Every test with a side, under as many names as are asked for: as if it had so many parameters."""
    return itertools.chain.from_iterable(_once(turn) for turn in itertools.count())


@cache
def _once(turn: int) -> list[Case]:
    found = []
    for path in sorted(SHIPPED.glob("*/*/test_*.py")):
        source = path.read_text(encoding="utf-8")
        for side, failure, function in _SIDED.findall(source):
            name = f"{path.relative_to(SHIPPED).as_posix()}::{function}" + (f"[{turn}]" if turn else "")
            drawn = random.Random(f"{path.parents[1].name}/{path.name}::{name.partition('::')[2]}")
            usual = ["reproduced"] * 8 + ["absent"] if side == "reproduces" else ["held"]
            # the first dozen run, whatever their names: small histories are of tests that ran
            missing = drawn.random() < 0.08 and len(found) >= 12
            word = "unavailable" if missing else drawn.choice(usual)
            milliseconds = round(10 ** drawn.uniform(0.6, 4))
            found.append(Case(name, _file(name), failure, side, word, milliseconds, source[200:2800]))
    return found


def _file(name: str) -> str:
    return f"pytest_rlregress/scenarios/{name.partition('::')[0]}"


@cache
def _lock() -> locks.Lock:
    return locks.read(Path(__file__).parents[2] / "requirements/cpu.txt")


def _device(name: str) -> dict[str, Any]:
    return {"name": name, "memory_bytes": 81559 * 2**20, "mig": False, "capability": "9.0"}


def _entry(
    test: Case, word: str, platform: str, drawn: random.Random, traces: bool, factors: Mapping[str, float]
) -> dict[str, Any]:
    status = (
        "failed"
        if word in FAILED | {"error"}
        else "skipped"
        if word in ("unavailable", "blocked", "skipped")
        else "passed"
    )
    raw = "error" if word == "error" else status
    duration = 0 if status == "skipped" else round(test.milliseconds * drawn.uniform(0.9, 1.15))
    extra: dict[str, Any] = {}
    if test.side:
        extra = {"failure": test.failure, "side": test.side, "verdict": word, "components": "vllm,verl"}
        extra["fidelity"] = "injected" if test.side == "reproduces" else "real"
        if status == "failed":
            extra["note"] = "AssertionError: 3 of 8 rows differ"
    if test.name == GOLDEN and status == "passed":
        extra["measured"] = _measured(platform, drawn, factors)
    entry = {
        "name": test.name,
        "status": status,
        "rawStatus": raw,
        "duration": duration,
        "filePath": test.file,
        **({"extra": extra} if extra else {}),
    }
    if status == "skipped":
        entry["message"] = "needs an accelerator with compute capability 9.0"
    if status == "failed":
        entry["message"] = "AssertionError: 3 of 8 rows differ"
    if status == "failed" or (word == "reproduced" and traces):
        entry["trace"] = f"{test.text}\nE   AssertionError: 3 of 8 rows differ"
    return entry


def _measured(platform: str, drawn: random.Random, factors: Mapping[str, float]) -> dict[str, Any]:
    """What the miniature step measured over two steps, at token and at sequence level."""

    def some(name: str, value: float, spread: float = 0.02) -> list[float]:
        return [value * factors.get(name, 1) * drawn.uniform(1 - spread, 1 + spread) for _ in range(2)]

    on_gpu = platform in DEVICES
    device, host = (9 * 2**30, 4 * 2**30) if on_gpu else (0, 3 * 2**30)
    runs = [
        {
            "step": "miniature-step",
            "variant": variant,
            "steps": 2,
            "loss": some("loss", 0.031),
            "grad_norm": some("grad_norm", 1.7),
            "reward": some("reward", 0.5),
            "disagreement_before": some("disagreement_before", 4e-3 if on_gpu else 3e-7, 0.2),
            "disagreement_after": some("disagreement_after", 5e-3 if on_gpu else 4e-7, 0.2),
            "step_seconds": some("step_seconds", 0.8 if on_gpu else 6.0, 0.05),
            "tokens_per_second": some("tokens_per_second", 2400.0 if on_gpu else 90.0, 0.05),
            "device_memory_bytes": round(device * factors.get("device_memory_bytes", 1)),
            "host_memory_bytes": round(host * factors.get("host_memory_bytes", 1)),
        }
        for variant in ("token", "sequence")
    ]
    key = {"torch": "2.13", "engine": "vllm 0.31", "dtype": "bfloat16" if on_gpu else "float32"}
    model, attention = (DEVICES[platform], "FLASH_ATTN") if on_gpu else ("AMD EPYC 9454, 48 cores", "CPU_ATTN")
    return {"key": {"device": model, "attention": attention, **key}, "runs": runs}
