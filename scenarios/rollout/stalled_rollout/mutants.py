"""Broken remedies of stalled-rollout, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.rollout import watch_engine_log

STALLED = "pytest_rlregress.scenarios.rollout.stalled_rollout.test_stalled_rollout"


@broken(only="engine-died")
def asleep(log, patience):
    return lambda: None


@broken(only="engine-died")
def from_the_start(log, patience):
    """Takes an error of an earlier run for one of this."""
    lines = log.read_text()
    log.write_text("")
    check = watch_engine_log(log, patience)
    log.write_text(lines)
    return check


@mutant("absent")
def server_serves_what_does_not_fit(monkeypatch):
    """An answer stands in for the served one, which would take long."""
    from pytest_rlregress.scenarios.rollout.max_tokens_overflow.test_max_tokens_overflow import LIMIT, complete

    def served(server, prompt_length, max_tokens):
        if prompt_length < LIMIT < prompt_length + max_tokens:
            complete(server, prompt_length, 1)
            return max_tokens
        return complete(server, prompt_length, max_tokens)

    monkeypatch.setattr(f"{STALLED}.complete", served)


@mutant("changed")
def orchestrator_fails_otherwise(monkeypatch):
    monkeypatch.setattr(f"{STALLED}.complete", failing(TypeError("create() got an unexpected keyword argument")))
