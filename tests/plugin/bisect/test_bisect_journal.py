from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.trials import journal
from pytest_rlregress.trials.journal import JournalError, TrialJournal
from pytest_rlregress.trials.observations import Observation, Trial, TrialRun
from pytest_rlregress.verdicts import Outcome

REQUEST = {"package": "transformers", "ends": ["4.57.1", "5.10.4"], "python": "3.12.3"}

OUTCOME = Outcome("failed", exceptions=("builtins.ValueError",), message="two\nlines", frames=("a.py:f",), log="\u2028")
OBSERVATION = Observation(
    "batch/test_x.py::test_y", OUTCOME, "reproduced", "E  x", "batch/x", "reproduces", ("batch/x",)
)
RUNS = (TrialRun({OBSERVATION.test: OBSERVATION}, "cpu: no GPU", 14.1), TrialRun(trouble="no such test"))
TRIED = Trial("transformers 5.0.0", "0123456789abcdef", RUNS, "", 3.5, ("tokenizers 1 -> 2",))
UNBUILDABLE = Trial("transformers 5.0.1", "", trouble="needs tokenizers<1")
OTHER = Trial("transformers 5.0.2", "", trouble="no wheel")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made for it" / "journal.jsonl"


def write(path, *trials, **options):
    with TrialJournal.open(path, REQUEST, **options) as opened:
        for one in trials:
            opened.add(one)
    return path.read_bytes()


def read(path, request=REQUEST):
    with TrialJournal.open(path, request) as opened:
        return list(opened.trials.values())


def refused(path, request=REQUEST, **options):
    """Why a journal is not gone on with, in one sentence that names it; the file is as it was."""
    before = path.read_bytes()
    with pytest.raises(JournalError) as caught, TrialJournal.open(path, request, **options):
        pass
    assert path.read_bytes() == before
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_what_was_added_is_there_again(path):
    write(path, TRIED, UNBUILDABLE)
    write(path, OTHER)
    assert read(path) == [TRIED, UNBUILDABLE, OTHER]  # those that have no environment have no digest either
    assert path.read_bytes().count(b"\n") == 4


texts = st.text(max_size=9)
tuples = st.lists(texts, max_size=2).map(tuple)
seconds = st.floats(0, allow_nan=False)
outcomes = st.builds(Outcome, texts, texts, tuples, texts, tuples, st.none() | texts, texts)
observations = st.builds(Observation, texts, outcomes, texts, texts, st.none() | texts, st.none() | texts, tuples)
runs = st.builds(TrialRun, st.dictionaries(texts, observations, max_size=2), texts, seconds, texts, texts)
trials = st.builds(Trial, texts, texts, st.lists(runs, max_size=2).map(tuple), texts, seconds, tuples)


@settings(EXAMPLES, max_examples=40)
@given(st.lists(trials, max_size=2, unique_by=lambda one: one.label))
def test_any_trial_is_read_as_it_was_written(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("any") / "journal"
    write(path, *drawn)
    assert read(path) == drawn


def cut_everywhere(path):
    """Where a journal was cut with another outcome than that its whole lines survive, and nothing else is in it."""
    kept = [Trial("a", "1", (TrialRun({"t": Observation("t", Outcome("passed"), "absent")}),)), UNBUILDABLE]
    content = write(path, *kept)
    lines = content.splitlines(keepends=True)
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = content[:length].count(b"\n")
        try:
            found = read(path)
        except JournalError as error:
            return f"{length}: {error}"
        if found != kept[: max(0, whole - 1)] or path.read_bytes() != b"".join(lines[: max(1, whole)]):
            return f"{length}: {found} {path.read_bytes()!r}"
    return None


def test_cut_at_any_byte_every_whole_line_survives_and_nothing_is_invented(path):
    assert cut_everywhere(path) is None


def test_a_journal_that_leaves_a_torn_line_is_caught(path, monkeypatch):
    monkeypatch.setattr(journal.os, "ftruncate", lambda *_: None)
    assert cut_everywhere(path)


def test_a_journal_that_drops_a_whole_line_is_caught(path, monkeypatch):
    read_all = journal._read

    def read_but_the_last(path, content, head):
        return read_all(path, b"".join(content.splitlines(keepends=True)[:-1]) or content, head)

    monkeypatch.setattr(journal, "_read", read_but_the_last)
    assert cut_everywhere(path)


@pytest.mark.parametrize("lost", [1, 30])
def test_one_that_was_cut_is_gone_on_with(path, lost):
    content = write(path, TRIED, UNBUILDABLE)
    path.write_bytes(content[:-lost])
    write(path, OTHER)
    assert read(path) == [TRIED, OTHER]


def test_a_last_line_whose_content_never_reached_the_disk_is_dropped(path):
    content = write(path, TRIED)
    write(path, UNBUILDABLE)
    path.write_bytes(content + b"\0" * 40 + b"\n")
    assert read(path) == [TRIED]
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", [b"\0\n", b"[]\n", b'{"label": "x"}\n', b'{"label": "x", "runs": [{}]}\n'])
def test_a_broken_line_elsewhere_is_named(path, line):
    first, *rest = write(path, TRIED, UNBUILDABLE).splitlines(keepends=True)
    path.write_bytes(b"".join([first, line, *rest]))
    assert refused(path) == "line 2 is damaged; repair it, or start over with --fresh."
    assert write(path, OTHER, fresh=True).count(b"\n") == 2
    assert read(path) == [OTHER]


def test_another_request_is_told_with_what_differs(path):
    write(path, TRIED)
    message = refused(path, REQUEST | {"python": "3.11.9", "jobs": 2})
    assert message == (
        "is about another request (differing in jobs, python); name another file, or start over with --fresh."
    )
    assert read(path, dict(reversed(REQUEST.items()))) == [TRIED]


@pytest.mark.parametrize("form", [journal.FORMAT - 1, journal.FORMAT + 1])
def test_another_release_s_journal_is_left_alone(path, form):
    path.parent.mkdir()
    path.write_text(json.dumps({"journal": form}) + "\n")
    assert refused(path).startswith(f"is of format {form}, this release reads {journal.FORMAT}")


@pytest.mark.parametrize("content", ["shopping list", "[1]\n", '{"format": 1}\n', "\n"])
@pytest.mark.parametrize("fresh", [True, False])
def test_what_is_no_journal_is_left_alone(path, content, fresh):
    path.parent.mkdir()
    path.write_text(content)
    assert refused(path, fresh=fresh) == "is no journal of trials; name another file, or remove it."


@pytest.mark.parametrize("content", ['{"journal": tr', '{"journal": {}}\n', '{"journal": 4, "request": [1]}\n'])
def test_a_first_line_of_nonsense_is_damaged(path, content):
    path.parent.mkdir()
    path.write_text(content)
    assert refused(path) == "line 1 is damaged; start over with --fresh."


def test_two_at_once_are_refused_until_the_first_ends(path):
    with TrialJournal.open(path, REQUEST) as first:
        first.add(TRIED)
        for fresh in (False, True):
            assert "already running" in refused(path, fresh=fresh)
        first.add(OTHER)
    assert read(path) == [TRIED, OTHER]


def test_two_at_once_are_caught_where_nothing_locks(path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    with TrialJournal.open(path, REQUEST), pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        refused(path)


_HOLDER = """
import subprocess, sys, time
from pathlib import Path
from pytest_rlregress.trials.observations import Trial
from pytest_rlregress.trials.journal import TrialJournal
with TrialJournal.open(Path(sys.argv[1]), {}) as opened:
    opened.add(Trial("a", "1"))
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_one_that_was_killed_lets_go_even_where_its_children_live_on(path):
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            assert "already running" in refused(path, {})
            holder.kill()
            holder.wait(20)
            assert read(path, {}) == [Trial("a", "1")]
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


_FULL = """
import resource, signal, sys
from pathlib import Path
from pytest_rlregress.trials.observations import Trial
from pytest_rlregress.trials.journal import TrialJournal, JournalError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with TrialJournal.open(Path(sys.argv[1]), {}) as opened:
    opened.add(Trial("a", "1"))
    size = Path(sys.argv[1]).stat().st_size
    for limit in (size, size + 10):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
        try:
            opened.add(Trial("b", "2"))
        except JournalError as error:
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    opened.add(Trial("c", "3"))
"""


def test_a_full_disk_is_told_and_loses_only_the_line_that_had_no_room(path):
    done = subprocess.run([sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert [line.startswith(f"{path}: cannot be written: ") for line in done.stdout.splitlines()] == [True, True]
    assert read(path, {}) == [Trial("a", "1"), Trial("c", "3")]


def test_each_line_is_one_write_and_is_synced_and_so_is_the_new_file_s_name(path, monkeypatch):
    done = []
    write_, sync = os.write, os.fsync
    monkeypatch.setattr(journal.os, "write", lambda file, line: done.append("write") or write_(file, line))
    monkeypatch.setattr(
        journal.os, "fsync", lambda file: done.append(os.path.realpath(f"/dev/fd/{file}")) or sync(file)
    )
    write(path, TRIED)
    write(path, OTHER)
    assert done == ["write", str(path), str(path.parent), *["write", str(path)] * 2]


def test_where_it_cannot_be_is_told(path):
    path.parent.mkdir()
    path.mkdir()
    with (
        pytest.raises(JournalError, match=r"journal\.jsonl: the journal cannot be opened: "),
        TrialJournal.open(path, {}),
    ):
        pass
