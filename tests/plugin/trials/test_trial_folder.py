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
from patience import PATIENCE

from pytest_rlregress.environments import RequestError
from pytest_rlregress.failures.observations import Observation
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.trials.trial import Trial, TrialFolder

OUTCOME = Outcome("failed", exceptions=("builtins.ValueError",), message="two\nlines", frames=("a.py:f",), log="\u2028")
OBSERVATION = Observation(
    "batch/test_x.py::test_y", OUTCOME, "reproduced", "E  \udc80", "batch/x", "reproduces", ("batch/x",)
)
RUN = make_run([OBSERVATION], "cpu", 14.1)
TRIED = Trial("transformers 5.0.0", Lock({"transformers": "transformers==5.0.0"}), (RUN,), "", 3.5, ("a 1 -> 2",))
OTHER = Trial("transformers 5.0.2", Lock({"transformers": "transformers==5.0.2"}), (RUN, RUN))


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


def test_reads_trials_in_the_order_they_were_added(path):
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
def test_any_trial_survives_a_round_trip(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("any")
    write(path, *drawn)
    assert read(path) == drawn


@pytest.mark.parametrize("content", ["", "[]", '{"label": 1}', '{"label": "x", "runs": [{"record": {}}]}', "{"])
def test_skips_a_damaged_file(path, content):
    write(path, TRIED, OTHER)
    (path / "00000.json").write_text(content)
    assert read(path) == [OTHER]
    write(path, TRIED)
    assert read(path) == [OTHER, TRIED]


def test_rejects_a_second_command_until_the_first_ends(path):
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
from pytest_rlregress.trials.trial import Trial, TrialFolder
with TrialFolder.open(Path(sys.argv[1])) as opened:
    opened.add(Trial("a"))
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_killed_command_releases_the_folder_while_its_children_live(path):
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(RequestError, match="already running"):
                read(path)
            holder.kill()
            holder.wait(PATIENCE)
            assert read(path) == [Trial("a")]
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)
