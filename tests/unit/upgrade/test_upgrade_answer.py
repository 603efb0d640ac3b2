"""What a preview says: its sentences, its sections, and that nothing in them is markup or a secret."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from pytest_rlregress.commands.upgrade.answer import LeftOut, SafeSet, UpgradeAnswer, tell
from pytest_rlregress.commands.upgrade.comparison import Effect, VerdictChange
from pytest_rlregress.trials.document import to_json, to_markdown, to_text
from pytest_rlregress.trials.search import State
from pytest_rlregress.trials.trial import RunContext, TrialSummary
from pytest_rlregress.util.text import columns


def change(name, effect, verdict="regressed", reason="", side="guards"):
    return VerdictChange(name, side, "held 1", f"{verdict} 1", effect, verdict, reason, "E  what came out")


SAFE = UpgradeAnswer(
    asked="vllm==0.32.0",
    command=("rlregress", "upgrade", "vllm==0.32.0"),
    asked_for=("vllm 0.31.0 -> 0.32.0",),
    moved_along=("torch 2.13.0 -> 2.14.0",),
    unchanged=50,
    run_context=RunContext("3.12.3", "Linux x86_64", "cpu"),
    tried=(TrialSummary("as it is here", State.GOOD, "50 held", 12.3),),
    seconds=60.0,
)
UNTRIED = change("pad", Effect.UNTRIED, reason="not tried with verl 0.4.1: OSError: no")
WORSE = change("max-tokens-overflow", Effect.WORSE, reason="ValueError: too large")
UNSAFE = replace(SAFE, safe=False, changes=(WORSE,))
SET = SafeSet(
    ("torch 2.13.0 -> 2.14.0",), (LeftOut(("vllm 0.31.0 -> 0.32.0",), "max-tokens-overflow: held -> regressed"),)
)


BACK = ("verl goes back from 0.9.1 to 0.4.1",)


def headline(answer):
    return to_json(tell(answer))["summary"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            replace(SAFE, safe=False, back=BACK),
            "verl goes back from 0.9.1 to 0.4.1; beside that nothing gets worse (2 packages move, 50 tests unchanged). "
            "Without a step back nothing moves: stay as it is here.",
        ),
        (
            replace(SAFE, safe=False, back=BACK, instead=("vllm 0.31.0 -> 0.31.1",)),
            "verl goes back from 0.9.1 to 0.4.1; beside that nothing gets worse (2 packages move, 50 tests unchanged). "
            "Without a step back: vllm 0.31.0 -> 0.31.1.",
        ),
        (
            replace(UNSAFE, back=BACK, safe_set=SET),
            "verl goes back from 0.9.1 to 0.4.1. Not safe: max-tokens-overflow regressed; the largest safe set is 1 of "
            "2 upgrades, without vllm 0.31.0 -> 0.32.0.",
        ),
        (
            replace(SAFE, stays=("numpy stays at 2.3: six 1 requires numpy<2.4",)),
            "numpy stays at 2.3: six 1 requires numpy<2.4. Safe (2 packages move, 50 tests unchanged).",
        ),
        (SAFE, "Safe (2 packages move, 50 tests unchanged)."),
        (
            replace(SAFE, gone=("a", "b"), changes=(change("a", Effect.ABSENT, "absent"),)),
            "Safe, and 2 workarounds can be removed: a, b (2 packages move, 50 tests unchanged).",
        ),
        (
            replace(SAFE, changes=(change("c", Effect.BAD_BEFORE), change("d", Effect.LOST, "unavailable"))),
            "Bad here already, and not counted: c. Safe (2 packages move, 50 tests unchanged). Coverage is lost, as "
            "tests can no longer be driven: d.",
        ),
        (UNSAFE, "Not safe: max-tokens-overflow regressed; --stepwise finds the largest safe set."),
        (
            replace(SAFE, safe=False, back=BACK, changes=(UNTRIED,)),
            "verl goes back from 0.9.1 to 0.4.1. Not told whether it is safe, for the test may not fit the release: "
            "pad regressed, not tried with verl 0.4.1: OSError: no. Without a step back nothing moves: stay as it is "
            "here.",
        ),
        (
            replace(UNSAFE, changes=(WORSE, UNTRIED)),
            "Not safe: max-tokens-overflow regressed; --stepwise finds the largest safe set. Nor is this told, for the "
            "test may not fit the release: pad regressed, not tried with verl 0.4.1: OSError: no.",
        ),
        (
            replace(UNSAFE, changes=tuple(change(name, Effect.WORSE, "hung") for name in "abcde")),
            "Not safe: a hung, b hung, c hung and 2 more; --stepwise finds the largest safe set.",
        ),
        (
            replace(
                UNSAFE,
                changes=tuple(
                    change(name, Effect.BROKEN, "blocked", "vllm is broken: ImportError: no") for name in "ab"
                ),
            ),
            "Not safe: vllm is broken: ImportError: no; --stepwise finds the largest safe set.",
        ),
        (
            replace(UNSAFE, safe_set=SET, output="safe.txt"),
            "Not safe: max-tokens-overflow regressed; the largest safe set is 1 of 2 upgrades, without vllm 0.31.0 -> "
            "0.32.0. The lock is in safe.txt.",
        ),
        (
            replace(UNSAFE, safe_set=replace(SET, kept=())),
            "Not safe: max-tokens-overflow regressed; no part of it is safe.",
        ),
        (
            replace(UNSAFE, changes=(), trouble="the run had no end", safe_set=SET),
            "Not safe: the tests could not be run with all of it, the run had no end; the largest safe set is 1 of 2 "
            "upgrades, without vllm 0.31.0 -> 0.32.0.",
        ),
        (
            UpgradeAnswer("vllm", ("rlregress", "upgrade", "vllm")),
            "Nothing would change: what vllm asks for is what is installed.",
        ),
    ],
)
def test_answer_begins_with_its_headline(answer, expected):
    assert headline(answer) == expected
    assert " ".join(to_text(tell(answer)).split()).startswith(" ".join(expected.split()))
    assert to_json(tell(answer))["exit_code"] == (0 if answer.safe else 1)


def test_sections_list_moves_test_results_and_left_out_upgrades():
    text = to_text(tell(replace(UNSAFE, safe_set=SET)))
    for line in (
        "max-tokens-overflow  guards  held 1  regressed 1  not safe: worse  ValueError: too large",
        "vllm 0.31.0 -> 0.32.0: max-tokens-overflow: held -> regressed",
        "torch 2.13.0 -> 2.14.0  moves along",
        "rlregress upgrade vllm==0.32.0",
        "E  what came out",
    ):
        assert line in text


def test_json_has_the_format_and_words_for_effects():
    found = json.loads(json.dumps(to_json(tell(replace(UNSAFE, safe_set=SET)))))
    assert found["format"] == 3
    assert found["changes"][0]["effect"] == "worse"
    assert found["safe_set"]["left_out"][0]["upgrade"] == ["vllm 0.31.0 -> 0.32.0"]


def test_escapes_markup_and_hides_secrets(monkeypatch):
    monkeypatch.setenv("HOME", "/home/s3cret")
    nasty = "</td>|<script>`x`|@someone #12 https://u:s3cret@index/ /home/s3cret/x"
    bad = replace(WORSE, name=nasty, reason=nasty, text=nasty)
    left = LeftOut((nasty,), nasty)
    answer = replace(UNSAFE, asked=nasty, changes=(bad,), safe_set=SafeSet((nasty,), (left,)), moved_along=(nasty,))
    for render in (to_text, to_markdown, lambda one: json.dumps(to_json(one))):
        assert "s3cret" not in render(tell(answer))
    page = MarkdownIt("commonmark").render(to_markdown(tell(answer)))
    assert "<script>" not in page
    assert page.count("<pre>") == page.count("<details") == 8  # no section has ended one


def test_what_moved_stands_above_what_the_tests_say():
    text = to_text(tell(replace(UNSAFE, moved=("verl 0.7.0 → 0.9.1: 1 default that you inherit moved.", "a: 1 → 2"))))
    assert text.index("What moved for your runs") < text.index("a: 1 → 2") < text.index("What the tests say")
    assert "What moved" not in to_text(tell(UNSAFE))


@pytest.mark.parametrize("width", [70, 80, 120])
def test_tables_follow_the_terminal(width):
    name, reason = "max-tokens-overflow", " ".join(["the engine refuses what it took before"] * 5)
    answer = replace(UNSAFE, changes=tuple(replace(one, name=name, reason=reason) for one in UNSAFE.changes))
    token = columns.set(width)
    try:
        lines = to_text(tell(answer)).splitlines()
    finally:
        columns.reset(token)
    assert max(map(len, lines)) <= width, max(lines, key=len)
    assert " ".join(" ".join(lines).split()).count(reason.partition(" refuses")[0]) >= 5
