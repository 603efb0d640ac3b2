"""The folder of a request's trials: what was finished is there again, and nothing else is taken for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_trials import make_run

from pytest_rlregress.commands.environments import RequestError
from pytest_rlregress.commands.trials.trial import Observation, Trial, TrialFolder
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.locks import Lock

OUTCOME = Outcome("failed", exceptions=("builtins.ValueError",), message="two\nlines", frames=("a.py:f",), log="\u2028")
OBSERVATION = Observation(
    "batch/test_x.py::test_y", OUTCOME, "reproduced", "E  \udc80", "batch/x", "reproduces", ("batch/x",)
)
RUN = make_run([OBSERVATION], "cpu", 14.1)
TRIED = Trial("transformers 5.0.0", Lock({"transformers": "transformers==5.0.0"}), (RUN,), "", 3.5, ("a 1 -> 2",))
OTHER = Trial("transformers 5.0.2", Lock({"transformers": "transformers==5.0.2"}), (RUN, RUN))
KNOWN = " (known from before: --fresh tries it again)"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made for it" / "trials"


def write(path, *trials, **options):
    with TrialFolder.open(path, **options) as opened:
        for one in trials:
            opened.add(one)


def read(path):
    with TrialFolder.open(path) as opened:
        return list(opened.trials.values())


def test_what_was_added_is_there_again_in_its_order(path):
    write(path, TRIED)
    write(path, OTHER)
    assert read(path) == [TRIED, OTHER]
    (seen,) = read(path)[0].runs[0].observations.values()
    assert seen == OBSERVATION
    write(path, OTHER, fresh=True)
    assert read(path) == [OTHER]


texts = st.text(max_size=9)
tuples = st.lists(texts, max_size=2).map(tuple)
seconds = st.floats(0, allow_nan=False, allow_infinity=False)
outcomes = st.builds(Outcome, texts, texts, tuples, texts, tuples, st.none() | texts, texts)
observations = st.builds(Observation, texts, outcomes, texts, texts, texts, texts)
runs = st.builds(make_run, st.lists(observations, max_size=2, unique_by=lambda one: one.test), texts, seconds)
locks = st.dictionaries(texts, texts, max_size=2).map(Lock)
trials = st.builds(Trial, texts, locks, st.lists(runs, max_size=2).map(tuple), st.just(""), seconds, tuples)


@settings(EXAMPLES, max_examples=40)
@given(st.lists(trials, max_size=2, unique_by=lambda one: one.label))
def test_any_trial_is_read_as_it_was_written(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("any")
    write(path, *drawn)
    assert read(path) == drawn


def test_a_run_without_an_end_is_known_and_says_how_to_try_it_again(path):
    late = Trial("late", Lock({}), (make_run(trouble="the run had no end after 9 s"),))
    write(path, late)
    (known,) = read(path)
    assert known.runs[0].trouble == f"the run had no end after 9 s{KNOWN}"
    write(path, Trial("the same set", Lock({}), known.runs, same_as="late"))
    assert {one.runs[0].trouble for one in read(path)} == {f"the run had no end after 9 s{KNOWN}"}


@pytest.mark.parametrize("content", ["", "[]", '{"label": 1}', '{"label": "x", "runs": [{"record": {}}]}', "{"])
def test_a_damaged_file_is_named(path, content):
    write(path, TRIED)
    (path / "00000.json").write_text(content)
    with pytest.raises(RequestError, match=r"00000\.json: is damaged \(.*remove it, or start over with --fresh"):
        read(path)
    write(path, OTHER, fresh=True)
    assert read(path) == [OTHER]


def test_two_at_once_are_refused_until_the_first_ends(path):
    with TrialFolder.open(path) as first:
        first.add(TRIED)
        for fresh in (False, True):
            with pytest.raises(RequestError, match="the same command is already running"):
                write(path, fresh=fresh)
        first.add(OTHER)
    assert read(path) == [TRIED, OTHER]


_HOLDER = """
import subprocess, sys, time
from pathlib import Path
from pytest_rlregress.commands.trials.trial import Trial, TrialFolder
with TrialFolder.open(Path(sys.argv[1])) as opened:
    opened.add(Trial("a"))
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_one_that_was_killed_lets_go_even_where_its_children_live_on(path):
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(RequestError, match="already running"):
                read(path)
            holder.kill()
            holder.wait(20)
            assert read(path) == [Trial("a")]
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


_FULL = """
import resource, signal, sys
from pathlib import Path
from pytest_rlregress.commands.trials.trial import Trial, TrialFolder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with TrialFolder.open(Path(sys.argv[1])) as opened:
    opened.add(Trial("a"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, -1))
    try:
        opened.add(Trial("b"))
    except OSError as error:
        print(error.strerror)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    opened.add(Trial("c"))
"""


def test_a_full_disk_loses_only_the_trial_that_had_no_room(path):
    done = subprocess.run([sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.stdout) == ("", "File too large\n")
    assert read(path) == [Trial("a"), Trial("c")]
