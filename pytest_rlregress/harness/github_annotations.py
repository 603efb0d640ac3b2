"""Tell GitHub of a run: annotations in the step's log, and its answer as the job's summary.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_rlregress.failures.verdicts import Verdict
from pytest_rlregress.harness.results import RunResults
from pytest_rlregress.logs.ansi import plain
from pytest_rlregress.records import answer
from pytest_rlregress.records.answer import RunFinding

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session
    from pytest_rlregress.harness.terminal import Terminal

#: GitHub shows so many of each kind for one step.
SHOWN = 10
_LINES = 5
_TITLE = 255  # characters

#: Title, properties and message of an annotation.
Annotation = tuple[str, Mapping[str, str], str]


class GitHub:
    """Writes the annotations of a run, where GITHUB_ACTIONS is "true"."""

    def __init__(self, config: pytest.Config, run: Session, results: RunResults, terminal: Terminal) -> None:
        self._config, self._run, self._results, self._terminal = config, run, results, terminal

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the commands, each on a line of its own, and add to the job's summary."""
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary and self._terminal.is_about_the_stack():
            sections = answer.details(self._results.tests.values())
            sections["since the last record"] = self._terminal.since_last()
            if command_again := self._terminal.red_command():
                sections["to run the red part again"] = ["```", command_again, "```"]
            try:
                with open(summary, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(answer.as_markdown(self._terminal.answer(), sections))
            except OSError as error:  # must not cost the rest
                terminalreporter.write_line(f"GITHUB_STEP_SUMMARY: no summary of the job: {error}")
        found: dict[str, list[Annotation]] = {"error": [], "warning": [], "notice": []}
        places = {id(test): self._results.locations.get(nodeid) for nodeid, test in self._results.tests.items()}
        for one in answer.find(self._results.tests.values()):
            place = self._place(places[id(one.tests[0])])
            found[_kind(one)].append((_title(one), place, self._message(one)))
        if self._results.problem:
            found["warning"].append((self._results.problem, {}, "See the end of the log."))
        for kind, some in found.items():
            for title, where, message in _at_most(some, SHOWN):
                terminalreporter.write_line(command(kind, {**where, "title": title[:_TITLE]}, message))

    def _message(self, one: RunFinding) -> str:
        """Say why, what to do, and which tests."""
        first, *more = one.tests
        lines = one.notes if one.side or one.word == "broken" else _failure_lines(first.trace) or one.notes
        remedy = [f"remedy: {self._run.catalogue[one.failure].remedy}"] if one.failure else []
        path, colons, name = first.name.partition("::")
        test = f"{path.rpartition('/')[2]}{colons}{name}"
        return "\n".join([*lines, *remedy, f"{test} and {len(more)} more" if more else test])

    def _place(self, location: tuple[str, int | None] | None) -> dict[str, str]:
        """Return where a test is in the repository; nothing for one elsewhere, such as in site-packages."""
        if location is None:
            return {}
        # Shipped scenarios are collected through a link, of which GitHub knows no lines.
        path = (self._config.rootpath / location[0]).resolve()
        top = Path(os.environ.get("GITHUB_WORKSPACE") or self._config.rootpath).resolve()
        if not path.is_file() or not path.is_relative_to(top):
            return {}
        return {"file": path.relative_to(top).as_posix(), "line": str((location[1] or 0) + 1)}


def _kind(one: RunFinding) -> str:
    if not one.fails:
        return "notice"
    unavailable = one.tests[0].extra.verdict == Verdict.UNAVAILABLE
    return "warning" if unavailable else "error"


def _title(one: RunFinding) -> str:
    if one.failure or one.word == "broken":
        return f"{one.word}: {one.name}"
    return f"{one.word}: {one.name.partition('::')[2] or one.name}"


def _failure_lines(trace: str) -> list[str]:
    """Return what went wrong, as pytest marks it in a trace."""
    lines = [line[1:].strip() for line in trace.splitlines() if line.startswith("E ")]
    return [line for line in lines if line][:_LINES]


def command(kind: str, properties: Mapping[str, str], message: str) -> str:
    """Write a workflow command, escaped as in https://github.com/actions/toolkit (packages/core/src/command.ts)."""
    given = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{kind} {given}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    text = plain(text.encode(errors="backslashreplace"))
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _at_most(annotations: Sequence[Annotation], count: int) -> Sequence[Annotation]:
    """Return at most ``count`` annotations, the last of which lists all that do not fit."""
    if len(annotations) <= count:
        return annotations
    rest = annotations[count - 1 :]
    return [*annotations[: count - 1], (f"{len(rest)} more", {}, "\n".join(title for title, _, _ in rest))]
