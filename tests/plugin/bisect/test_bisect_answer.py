from __future__ import annotations

import html
import io
import json
import os
import pty
import re
import subprocess
from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_trials import make_run
from markdown_it import MarkdownIt
from patience import PATIENCE
from renderings import compare_with_file

from pytest_rlregress.commands.bisect.answer import Answer, ChangedSet, Culprit, Endpoint, NotFound, Untested, tell
from pytest_rlregress.failures.observations import Observation
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.trials.document import quote_command, redact, to_json, to_markdown, to_text
from pytest_rlregress.trials.search import State
from pytest_rlregress.trials.trial import Progress, RunContext, Trial, TrialSummary
from pytest_rlregress.util.units import format_duration

LAST_GOOD = Endpoint("4.57.6", "2026-01-16", "absent")
FIRST_BAD = Endpoint(
    "5.0.0",
    None,
    "reproduced",
    "Traceback\nE   ValueError: lengths differ\n",
    cause="ValueError: lengths differ (in transformers/batch.py:pad)",
)
CULPRIT = Culprit(
    "transformers",
    LAST_GOOD,
    FIRST_BAD,
    moved=("huggingface-hub 0.36.0 -> 1.3.4",),
    skipped=(Untested("5.0.1", "flaky: 2 good, 1 bad of 3"), Untested("5.0.2", "yanked: broken metadata")),
)
DOCUMENTED = {
    "id": "batch/mask-length-drift",
    "title": "The mask is longer than the ids",
    "cause": "len() counts keys",
    "remedy": "return_dict=False",
}
ANSWER = Answer(
    "batch/mask-length-drift",
    DOCUMENTED,
    (
        Endpoint("transformers 4.57.1", "2025-10-14", "absent"),
        Endpoint("transformers 5.10.4", None, "reproduced", "E  other"),
    ),
    RunContext("3.12.3", "Linux x86_64", "cpu: no GPU", {"torch": "2.13.0+cpu"}, ("verl 0.9: not needed",)),
    (
        TrialSummary("transformers 4.57.1", State.GOOD, "absent", 12.34),
        TrialSummary("transformers 5.10.4", State.BAD, "reproduced", 14.0),
        TrialSummary(
            "transformers 5.0.1", State.UNKNOWN, "2 absent, 1 reproduced", 44.0, 3, "flaky: 2 good, 1 bad of 3"
        ),
    ),
    132.4,
    ("rlregress", "bisect", "transformers", "--good", "4.57.6", "--bad", "5.0.0", "batch/mask-length-drift"),
    (CULPRIT,),
)
SETS = replace(
    ANSWER,
    changed=ChangedSet(14, ("transformers 4.57.6 -> 5.0.0", "trl 1 -> 2"), ("typer none -> 1",)),
    also_flip=("tests/test_x.py::test_y",),
)


def not_found(kind, **about):
    return replace(ANSWER, culprits=(), not_found=NotFound(kind, "transformers 4.57.1", **about))


def as_text(answer):
    return to_text(tell(answer))


def as_markdown(answer):
    return to_markdown(tell(answer))


def as_json(answer):
    return to_json(tell(answer))


RENDERERS = {"text": as_text, "markdown": as_markdown, "json": lambda answer: json.dumps(as_json(answer))}


def having(value, text):
    """The same answer with this text wherever it has one, but for what is ours."""
    if is_dataclass(value):
        ours = ("kind", "command")  # a command is quoted for a shell
        changed = {one.name: having(getattr(value, one.name), text) for one in fields(value) if one.name not in ours}
        return replace(value, **changed)
    if value == DOCUMENTED:
        return dict.fromkeys(value, text)
    if isinstance(value, dict):
        return {f"{text} {number}": text for number in range(len(value))}
    if isinstance(value, tuple):
        return tuple(having(one, text) for one in value)
    return text if isinstance(value, str) and not isinstance(value, State) else value


# -- what is in it ----------------------------------------------------------------------------------------------------


def with_culprit(**changes):
    return replace(ANSWER, culprits=(replace(CULPRIT, **changes),))


def with_set(**changes):
    return replace(SETS, culprits=(), changed=replace(SETS.changed, **changes))


SWAPPED = not_found("swapped", second="transformers 5.10.4", command=("rlregress", "bisect", "a b"))
FOUND = {
    "one package": ANSWER,
    "repaired": with_culprit(last_good=FIRST_BAD, first_bad=LAST_GOOD, repaired=True),
    "two locks": SETS,
    "only the set": with_set(),
    "one upgrade, not proven": with_set(minimal=("trl 1 -> 2",), moved_along=(), proven=False),
}
NARROWED = {
    "narrowed": with_culprit(between=(Untested("5.0.0rc1", "no wheel"),)),
    "undecided": with_set(undecided=(("trl", "peft"),)),
}
NOT_FOUND = {
    "fails at both": not_found("fails at both", second="transformers 5.10.4"),
    "passes at both": not_found("passes at both", second="transformers 5.10.4"),
    "swapped": SWAPPED,
    "swapped, without the command": replace(SWAPPED, not_found=replace(SWAPPED.not_found, command=())),
    "flaky end": not_found("flaky end", reason="flaky: 2 good, 1 bad of 3"),
    "untested end": not_found("untested end", reason="no wheel."),
    "not monotone": not_found("not monotone", second="transformers 5.2.0"),
}
ANSWERS = {**FOUND, **NARROWED, **NOT_FOUND}


WHOLE = {"two locks": SETS, "swapped": SWAPPED}
RENDERINGS = {
    "bisect.txt": lambda: "\n".join(f"=== {name} ===\n\n{as_text(one)}\n" for name, one in WHOLE.items()),
    "bisect.md": lambda: "\n".join(map(as_markdown, WHOLE.values())),
    "bisect.json": lambda: json.dumps({name: as_json(one) for name, one in WHOLE.items()}, indent=2) + "\n",
    "bisect-headlines.txt": lambda: "".join(f"{name}: {as_json(one)['summary']}\n" for name, one in ANSWERS.items()),
}


@pytest.mark.parametrize("file", RENDERINGS)
def test_every_answer_equals_its_recorded_rendering(file):
    compare_with_file(file, RENDERINGS[file]())


def test_exit_code_says_if_the_culprit_was_found():
    for code, answers in ((0, FOUND), (3, NARROWED), (1, NOT_FOUND)):
        assert {name: one.exit_code for name, one in answers.items()} == dict.fromkeys(answers, code)
        assert {as_json(one)["exit_code"] for one in answers.values()} == {code}


def test_a_trial_in_one_line():
    def run(verdict, key="t"):
        return make_run({key: Observation(key, Outcome("passed"), verdict)}, seconds=2.0)

    def line(*runs):
        return Trial("x 1", None, runs, build_seconds=3.0).summarize(State.GOOD, test="t")

    assert line(run("absent"), run("absent")) == TrialSummary("x 1", State.GOOD, "absent", 7.0, 2)
    assert line(run("absent"), run("reproduced"), run("absent")).verdict == "2 absent, 1 reproduced"
    assert line(run("absent", "other"), make_run(trouble="no such test")).verdict == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min"), (7512, "2 h 5 min")],
)
def test_formats_durations(seconds, text):
    assert format_duration(seconds) == text


# -- Markdown ---------------------------------------------------------------------------------------------------------

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKUP = "`|\\\n\r <>*_~[]()#@$&!-=:/.x1\t\x1b\x00\u2028é"
NASTY = [
    *("`", "```", "a|b", "\\|", "|", "a\\", "|`|", "</details>", "<b>", "<!--", "<https://x.y>", "&amp;"),
    *("#", "http://x.y/*z*", "**x**", "_x_", "[a](b)", "~~a~~", "![x](y)"),
    *(" ` a` ", "# a", "- a", "````\n~~~", "a\n\nb", "a\rb", "\u2028|", "\x1b[31mred", "\udc80"),
]


def read(text):
    """What a parser sees but the words: blocks, markup within lines, odd HTML; and all the words without spaces."""
    tokens = MARKDOWN.parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    markup = [one.type for one in inline if one.type not in ("text", "text_special", "code_inline", "html_inline")]
    odd = {one.content for one in inline if one.type == "html_inline"}
    page = re.sub("</?(code|strong)>", "", MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}))
    words = "".join(html.unescape(re.sub("<[^>]*>", "", page)).split())
    return ([token.type for token in tokens], markup, odd), words


WRITTEN = (SETS, SWAPPED)
MARK = "Qxyzzy"
EXPECTED = [read(as_markdown(having(answer, MARK))) for answer in WRITTEN]


def unfaithful(text):
    """What is wrong with the Markdown of an answer that has this text everywhere."""
    for answer, (shape, words) in zip(WRITTEN, EXPECTED, strict=True):
        found = read(as_markdown(having(answer, text)))
        if found[0] != shape:
            return "another structure"
        if found[1] != words.replace(MARK, "".join(redact(text).split())):
            return "not to be read"
    return None


@settings(EXAMPLES, max_examples=50)
@given(st.text(st.sampled_from(MARKUP) | st.characters(), min_size=1, max_size=12))
def test_any_text_leaves_the_markdown_whole_and_can_be_read(text):
    assume(redact(text).strip())
    assert unfaithful(text) is None


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_markup_in_a_text_is_text(text):
    assert unfaithful(text) is None


def test_markdown_mentions_nobody_and_links_no_issue():
    page = re.sub(r"(?s)<(code|pre)\b.*?</\1>", "", MARKDOWN.render(as_markdown(having(ANSWER, "@someone and #12"))))
    assert re.findall(r"@\w+|#\d+", html.unescape(page)) == []


def test_shows_the_first_and_last_lines_of_a_long_text():
    long = "\n".join([*(f"line {number}." for number in range(100)), "x" * 1000])
    for render in (as_text, as_markdown):
        written = render(replace(ANSWER, culprits=(replace(CULPRIT, first_bad=replace(FIRST_BAD, text=long)),)))
        assert "… 75 lines between" in written
        assert [number for number in range(100) if f"line {number}." in written] == [*range(8), *range(83, 100)]
        assert len(written) < 6000


def test_shows_equal_output_of_both_ends_once():
    ends = tuple(replace(end, verdict="1 failed", text="E  no jinja2") for end in ANSWER.ends)
    text = as_text(replace(NOT_FOUND["fails at both"], ends=ends))
    assert text.count("E  no jinja2") == 1
    assert "What came out at transformers 5.10.4, the bad end\n  the same as at transformers 4.57.1" in text


def test_a_conflict_is_shown_whole_with_what_may_help():
    conflict = "Because " + ", and because ".join(f"package-{number} requires another" for number in range(50))
    ends = (replace(ANSWER.ends[0], conflict=conflict), ANSWER.ends[1])
    answer = not_found("untested end", reason=conflict, advice="--no-deps moves nothing else.")
    for render in (as_text, as_markdown):
        written = " ".join(render(replace(answer, ends=ends)).split())
        assert written.count(conflict) == 1
        assert "--no-deps moves nothing else." in written
    json_ = as_json(replace(answer, ends=ends))
    assert json_["not_found"]["reason"] == json_["ends"][0]["conflict"] == conflict


def test_leaves_out_the_date_column_without_dates():
    undated = replace(CULPRIT, last_good=replace(LAST_GOOD, date=None))
    text = as_text(replace(ANSWER, culprits=(undated,), ends=tuple(replace(end, date=None) for end in ANSWER.ends)))
    assert "Broke in transformers 5.0.0; last good: 4.57.6." in text
    assert "date" not in text.replace("candidate", "")


# -- what can be shown ------------------------------------------------------------------------------------------------

SECRETS = [
    "https://user:s3cret@index.example/simple",
    "git+https://s3cret@github.com/a/b@main",
    "https://u:a@s3cret@host/",
    "ssh://git:s3cret@host/x",
    "/home/s3cret",
    "-e /home/s3cret/project",
    "--repo=/home/s3cret/x y",
    "file:///home/s3cret/wheel.whl",
]


def told(monkeypatch, text):
    """Which of the answer's forms tell a secret."""
    monkeypatch.setenv("HOME", "/home/s3cret")
    return [name for name, render in RENDERERS.items() if "s3cret" in render(having(ANSWER, text))]


@pytest.mark.parametrize("text", SECRETS)
def test_hides_credentials_and_the_home_folder(text, monkeypatch):
    assert told(monkeypatch, text) == []
    assert "s3cret" not in said(lambda progress: progress.report_stop([text]))


@pytest.mark.parametrize(
    "text", ["/home/secretary", "/var/home/s3cret", "a@b", "ssh://git@host/x", "x @ git+https://h/a@1"]
)
def test_shows_text_that_is_not_secret(text, monkeypatch):
    monkeypatch.setenv("HOME", "/home/s3cret")
    assert redact(text) == text


def test_paths_are_as_seen_from_here(monkeypatch):
    monkeypatch.setenv("HOME", "/home/s3cret")
    here = os.getcwd()
    assert redact(f"{here}/tests/test_a.py:3: {here}; file://{here}/a; {here}er/b") == (
        f"tests/test_a.py:3: {here}; file://{here}/a; {here}er/b"
    )


@pytest.mark.parametrize("home", ["/", "/home/me/"])
def test_a_command_means_the_same_to_a_shell(home, monkeypatch):
    monkeypatch.setenv("HOME", home)
    inside = [f"{home}{'' if home == '/' else 'a b'}", f"--repo={home}x y", f"--repo={home}", home.rstrip("/") or "x"]
    words = [*inside, f"a:{home}b:{home}c", "it's", "$(x)", "a~/b", "", "two\nlines", "~other", "[a-b]", "test_x[a|b]"]
    command = quote_command(["printf", r"%s\0", *words])
    assert home == "/" or home not in command
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ, timeout=PATIENCE)
    seen = done.stdout.split("\0")[:-1]
    assert [os.path.normpath(one) if one else "" for one in seen] == [
        os.path.normpath(one) if one else "" for one in words
    ]


# -- progress ---------------------------------------------------------------------------------------------------------


def said(act, stream=None, times=(0.0,)):
    """What is said, with a clock that goes through these times and then stands."""
    stream, left = stream or io.StringIO(), list(times)
    act(Progress(stream, lambda: left.pop(0) if len(left) > 1 else left[0]))
    return stream.getvalue() if isinstance(stream, io.StringIO) else None


def a_bisect(progress):
    progress.report_known(1)
    progress.set_activity("building transformers 4.57.1")
    progress.report_trial(TrialSummary("transformers 4.57.1", State.GOOD, "absent", 30.0), role="good end")
    progress.say("torch is copied, not linked")
    progress.report_trial(TrialSummary("transformers 5.0.0", State.BAD, "reproduced", 14.0), moved=["tokenizers …"])
    unknown = TrialSummary(
        "transformers 5.0.1", State.UNKNOWN, "2 absent, 1 reproduced", 20.4, 3, "flaky: 2 good, 1 bad of 3"
    )
    progress.report_trial(unknown)


def test_prints_progress_in_lines():
    compare_with_file("bisect-progress.txt", said(a_bisect))


def test_progress_on_a_terminal_also_says_what_is_being_done(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    main, side = pty.openpty()
    with os.fdopen(main, "rb", buffering=0) as screen, os.fdopen(side, "w", encoding="utf-8") as stream:
        progress = Progress(stream, lambda: 0.0)
        progress.set_activity("building transformers 5.0.0")
        progress.report_trial(TrialSummary("x 1", State.GOOD, "", 1.0))
        seen = ""
        while not seen.endswith("1.0 s\r\n"):
            seen += screen.read(4096).decode()
    assert seen == "\r\x1b[Kbuilding transformers 5.0.0 …\r\x1b[K[1] x 1: good in 1.0 s\r\n"


def test_progress_stopped_says_how_to_go_on():
    text = said(lambda progress: progress.report_stop(["rlregress", "bisect", "a b"]), times=(0.0, 72.0))
    assert text == "stopped after 0 trials, 1 min 12 s; these are kept. To go on from here:\n  rlregress bisect 'a b'\n"


def test_names_what_the_release_changes():
    changes = ("transformers 4.57.6 → 5.0.0: 1 default moved.", "report_to: all → none")
    answer = replace(ANSWER, culprits=(replace(CULPRIT, changes=changes),))
    text = as_text(answer)
    title = "transformers: what the release changes for a run"
    assert text.index(title) < text.index(changes[0]) < text.index(changes[1]) < text.index("moved from last good")
    assert to_json(tell(answer))["culprits"][0]["changes"] == [*changes]
    assert title not in as_text(ANSWER)
