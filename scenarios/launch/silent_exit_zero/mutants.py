"""Broken remedies of silent-exit-zero, and stacks that differ."""

from __future__ import annotations

import subprocess

from mutants import broken, mutant
from pytest_rlregress.remedies.launch import check_finished


@broken(only="test_what_did_not_start")
def trusts_the_exit_code(returncode, log, step_pattern):
    if returncode:
        raise RuntimeError(f"{log}: exit {returncode}")


@broken(only="first_finished_step")
def any_line_will_do(returncode, log, step_pattern):
    check_finished(returncode, log, "")


def run_as(monkeypatch, changed):
    """Have subprocess.run do what ``changed(command, keywords)`` makes of a call."""
    run = subprocess.run

    def patched(command, **keywords):
        command, keywords = changed(command, keywords)
        return run(command, **keywords)

    monkeypatch.setattr(subprocess, "run", patched)


@mutant("absent", only="another_interpreter")
def the_shell_stops_where_a_line_fails(monkeypatch):
    run_as(monkeypatch, lambda command, keywords: (["sh", "-e", *command[1:]], keywords))


@mutant("changed", only="another_interpreter")
def no_shell(monkeypatch):
    run_as(monkeypatch, lambda command, keywords: (["no-such-shell"], keywords))
