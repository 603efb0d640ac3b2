"""Broken remedies of silent-exit-zero, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.launch import check_finished
from pytest_rlregress.scenarios.launch.mutants import run_as


@broken(only="test_what_did_not_start")
def trusts_the_exit_code(returncode, log, step_pattern):
    if returncode:
        raise RuntimeError(f"{log}: exit {returncode}")


@broken(only="first_finished_step")
def any_line_will_do(returncode, log, step_pattern):
    check_finished(returncode, log, "")


@mutant("absent", only="another_interpreter")
def the_shell_stops_where_a_line_fails(monkeypatch):
    run_as(monkeypatch, lambda command, keywords: (["sh", "-e", *command[1:]], keywords))


@mutant("changed", only="another_interpreter")
def no_shell(monkeypatch):
    run_as(monkeypatch, lambda command, keywords: (["no-such-shell"], keywords))
