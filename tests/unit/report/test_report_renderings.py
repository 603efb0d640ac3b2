"""What the report says of made-up nights, in each of its forms: compared with files of ``tests/renderings``."""

from __future__ import annotations

import datetime
import html
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from histories import Case, Event, cases, make
from renderings import compare_with_file

from pytest_rlregress.commands.report import json_document
from pytest_rlregress.records.history import open_history
from pytest_rlregress.records.night import compare, judge_night
from pytest_rlregress.records.night_text import tell
from pytest_rlregress.stack.locks import Lock

PACKAGES = Lock(
    {
        name: f"{name}=={version}"
        for name, version in {
            **{"accelerate": "1.10.0", "huggingface-hub": "0.35.0", "ray": "2.49.1", "tokenizers": "0.22.0"},
            **{"torch": "2.13.0", "transformers": "5.10.4", "verl": "0.9.1", "vllm": "0.31.0"},
        }.items()
    }
)


def case(name, side, word="held"):
    return Case(f"batch/test_columns.py::{name}", "tests/batch/test_columns.py", "short-column", side, word, 40, "...")


GUARD, OTHER, THIRD = (case(name, "guards") for name in ("test_padded", "test_cut", "test_joined"))
ACT = case("test_act", "reproduces", "reproduced")
TESTS = [*cases(1), ACT, GUARD, OTHER, THIRD, case("test_on_a_card", "guards", "unavailable")]
NEWER = [
    *(Event("upgrade", 2, name, version) for name, version in (("vllm", "0.32.0"), ("verl", "0.4.1"))),
    *(Event("upgrade", 2, name, "9.9") for name in ("accelerate", "huggingface-hub", "tokenizers", "transformers")),
]
JUMP = [Event("upgrade", 12, "vllm", "0.32.0"), Event("measure", 12, "disagreement_after", "20")]
BAD, AGAIN = Event("bad", 2, GUARD.name, platform="h100"), Event("again", 2, platform="h100")


@dataclass(frozen=True)
class Told:
    """A history that is told of: its last night, or its first night against those after it."""

    events: list[Event]
    nights: int = 3
    platforms: tuple[str, ...] = ("cpu", "h100")
    expect: tuple[str, ...] = ()
    compared: bool = False


NIGHTS = {
    "nothing": Told([]),
    "a regression after an upgrade": Told([*NEWER, AGAIN, BAD]),
    "worse, once": Told([BAD]),
    "a rerun that disagrees": Told([Event("flake", 2, GUARD.name, platform="h100")]),
    "another driver": Told([Event("bad", 1, GUARD.name), Event("driver", 1, value="580.1")], platforms=("h100",)),
    "another card": Told([Event("bad", 1, GUARD.name), Event("device", 1, value="NVIDIA H100 PCIe")], 3, ("h100",)),
    "another function under the guard": Told(
        [
            Event("bad", 1, GUARD.name),
            *(
                Event("subject", night, GUARD.name, f"lab.{name}:columns")
                for night, name in enumerate(("batch", "mine"))
            ),
            *(Event("setting", 1, *one) for one in (("ini file", "broken.toml"), ("rlregress_subjects", "..."))),
        ],
        platforms=("h100",),
    ),
    "another setting": Told(
        [Event("bad", 1, GUARD.name), Event("setting", 1, "rlregress_timeout", "60.0")], platforms=("h100",)
    ),
    "no run": Told([Event("no run", 2, platform="h100")], expect=("h200",)),
    "ended early, and gone": Told(
        [Event("interrupted", 2, platform="h100"), Event("gone", 2, OTHER.name, platform="cpu")]
    ),
    "coverage that was lost": Told(
        [*NEWER, Event("bad", 2, GUARD.name, "unavailable"), Event("bad", 2, ACT.name, "blocked")], platforms=("cpu",)
    ),
    "coverage that came back": Told(
        [Event("bad", 1, name, "blocked", until=2) for name in (GUARD.name, ACT.name)], platforms=("cpu",)
    ),
    "a first run that fails": Told([Event("bad", 0, GUARD.name)], 1, ("cpu",)),
    "failing as before": Told([Event("bad", 0, GUARD.name)], 2, ("cpu",)),
    "good again": Told([Event("bad", 0, GUARD.name, until=2)], platforms=("cpu",)),
    "an upgrade that flipped nothing": Told(NEWER, platforms=("cpu",)),
    "compared: confirmed": Told([*NEWER, AGAIN, BAD], platforms=("h100",), compared=True),
    "compared: once": Told([Event("bad", 1, GUARD.name)], 2, ("h100",), compared=True),
    "compared: coverage that was lost": Told([Event("bad", 1, GUARD.name, "blocked")], 2, ("cpu",), compared=True),
    "compared: coverage that came back": Told(
        [Event("bad", 0, GUARD.name, "blocked", until=1)], 2, ("cpu",), compared=True
    ),
    "compared: good again": Told([Event("bad", 0, GUARD.name, until=1)], 2, ("cpu",), compared=True),
    "compared: reruns with no result": Told(
        [Event("bad", 1, GUARD.name), Event("upgrade", 2, "vllm", "0.32.0")], 3, ("cpu",), compared=True
    ),
    "a number that jumps after an upgrade": Told([*JUMP, Event("again", 12)], 13, ("h100",)),
    "a number that jumps, once": Told(JUMP, 13, ("h100",)),
    "a number that jumps beside a test": Told(
        [*JUMP, Event("again", 12), Event("bad", 12, GUARD.name)], 13, ("cpu", "h100")
    ),
    "a number that is missing": Told([Event("unmeasured", 12, "grad_norm")], 13, ("cpu",)),
    "a number that is good again": Told([Event("measure", 11, "grad_norm", "9", until=12)], 13, ("cpu",)),
    "another Python": Told([Event("bad", 1, GUARD.name), Event("python", 1, value="3.12.1")], platforms=("h100",)),
}
ALL = Told(
    [
        *NEWER,
        *(AGAIN, BAD, Event("bad", 0, OTHER.name, "hung", platform="cpu")),
        Event("bad", 2, THIRD.name, "crashed", platform="h200"),
        Event("flake", 2, THIRD.name, platform="cpu"),
        Event("bad", 2, OTHER.name, "blocked", platform="h200"),
        Event("gone", 2, THIRD.name, platform="h100"),
        Event("no run", 2, platform="b200"),
    ],
    platforms=("cpu", "h100", "h200", "b200"),
)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """``opened(told)``: what is told, and its history."""
    monkeypatch.chdir(tmp_path)

    def opened(told, name="records"):
        folder = Path(name)
        files = make(
            folder, nights=told.nights, platforms=told.platforms, tests=TESTS, events=told.events, packages=PACKAGES
        )
        if told is ALL:
            (folder / "other.json").write_text('{"reportFormat": "CTRF"}')
        history = open_history(files if told.compared else [folder])
        if told.compared:
            before, *after = files[-3:]
            return compare(history, before, after), history
        return judge_night(history, expect=told.expect), history

    return opened


def test_report_text_equals_the_recorded_rendering(opened):
    said = {
        name: tell(opened(told, f"r{number}")[0]) for number, (name, told) in enumerate({**NIGHTS, "all": ALL}.items())
    }
    compare_with_file("report.md", "".join(f"=== {name} ===\n\n{text}\n" for name, text in said.items()))


@pytest.mark.parametrize(
    "name",
    [
        "compared: confirmed",
        "compared: coverage that was lost",
        "a number that jumps after an upgrade",
        "all",
    ],
)
def test_report_json_equals_the_recorded_rendering(opened, name):
    found, _ = opened({**NIGHTS, "all": ALL}[name])
    file = f"report-{re.sub('[^a-z]+', '-', name)}"
    compare_with_file(f"{file}.json", json.dumps(json_document.as_json(found), indent=1) + "\n")


def test_report_page_equals_the_recorded_rendering(opened):
    pytest.importorskip("jinja2")
    from pytest_rlregress.commands.report.page.page import render

    page = render(*opened(ALL), datetime.datetime(2026, 11, 20, 8, 30, tzinfo=datetime.UTC))
    page = re.sub("<svg.*?</svg>", "", page, flags=re.DOTALL)
    body = page[page.index("<body>") :]
    text = re.sub(r"</?(?:a|b|code|i|span|strong)\b[^>]*>", " ", " ".join(body.split()))
    lines = (" ".join(html.unescape(line).split()) for line in re.split("<[^>]*>", text))
    compare_with_file("report-page.txt", "".join(f"{line}\n" for line in lines if line))
