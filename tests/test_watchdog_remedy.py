"""The guards of the stalled rollout catch a watchdog that is broken in a small way."""

from __future__ import annotations

import time

import pytest

from pytest_rlregress.engine_log import EngineLog
from pytest_rlregress.remedies import watch_engine_log
from pytest_rlregress.scenarios.rollout.test_stalled_rollout import LOGGED, check_watchdog


def asleep(log, patience):
    return lambda: None


def from_the_start(log, patience):
    """Takes an error of an earlier run for one of this."""
    lines = log.read_text()
    log.write_text("")
    check = watch_engine_log(log, patience)
    log.write_text(lines)
    return check


def hasty(log, patience):
    """One refused request ends a run that goes on."""
    errors = []

    def check():
        errors.extend(line for line in log.read_text().splitlines() if line.startswith("(APIServer pid=1) ERROR"))
        if errors:
            raise RuntimeError("\n".join(errors))

    return check


def by_the_word(log, patience):
    """Any line that has the word."""
    begun = len(log.read_text())

    def check():
        if "error" in log.read_text()[begun:].lower():
            raise RuntimeError(log.read_text()[begun:])

    return check


def without_words(log, patience):
    engine = EngineLog(log)

    def check():
        if engine.failure(patience):
            raise RuntimeError(f"something is wrong, see {log}")

    return check


def reads_half_a_line(log, patience):
    """Forgets what it has read of a line that is still being written."""
    engine = EngineLog(log)

    def check():
        engine._unfinished = b""
        if failure := engine.failure(patience):
            raise RuntimeError(failure)

    return check


def by_size(log, patience):
    """A log that does not grow: of an idle engine too."""
    seen = [log.stat().st_size, time.monotonic()]

    def check():
        if log.stat().st_size != seen[0]:
            seen[:] = log.stat().st_size, time.monotonic()
        elif time.monotonic() - seen[1] > patience:
            raise RuntimeError(log.read_text())

    return check


@pytest.mark.parametrize("name", LOGGED)
def test_watchdog_passes_the_guards_check(tmp_path, name):
    check_watchdog(watch_engine_log, tmp_path / "log", *LOGGED[name])


@pytest.mark.parametrize(
    "twin", [asleep, from_the_start, hasty, by_the_word, without_words, reads_half_a_line, by_size]
)
def test_broken_watchdog_is_caught(twin, tmp_path):
    with pytest.raises(AssertionError):
        check_watchdog(twin, tmp_path / "log", *LOGGED["engine-died"])
