"""Write annotations of what failed into GitHub's log, where GITHUB_ACTIONS is "true".

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress.harness import properties
from pytest_rlregress.logs.ansi import plain
from pytest_rlregress.verdicts import Verdict

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session
    from pytest_rlregress.terminal import Terminal

#: GitHub shows so many of each kind for one step.
SHOWN = 10
_LINES = 5
_TITLE = 255  # characters


@dataclass
class Annotation:
    """One annotation, for all tests that give the same.

    Attributes:
        kind: ``error``, ``warning`` or ``notice``.
        place: Properties ``file`` and ``line`` of the first of the tests, where it lies in the repository.
        tests: Their names.
    """

    kind: str
    title: str
    message: str
    place: Mapping[str, str]
    tests: list[str] = field(default_factory=list)


class Annotations:
    """Collects annotations from test reports, and writes them at the end of the run."""

    def __init__(self, config: pytest.Config, run: Session, terminal: Terminal) -> None:
        self._config, self._run, self._terminal = config, run, terminal
        self._found: dict[tuple[str, ...], Annotation] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what is worth an annotation; failures of one kind together."""
        found = properties.read(report)
        verdict, note = found.get("verdict"), found.get("note", "")
        if verdict is None or report.when == "teardown":  # that one repeats the verdict
            if report.failed:
                what = "failed" if report.when == "call" else f"error in {report.when}"
                self._add("error", f"{what}: {report.location[2]}", _failure_text(report), report)
            return
        failure = self._run.catalogue[found["failure"]]
        if report.failed:
            kind = "warning" if verdict == Verdict.UNAVAILABLE else "error"
        elif verdict == Verdict.ABSENT and note:
            kind = "notice"
        else:
            return
        message = f"{_first_lines(note) or _failure_text(report)}\nremedy: {failure.remedy}"
        self._add(kind, f"{verdict}: {failure.id}", message, report, together=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that could not be imported stands for its tests."""
        if report.failed:
            self._add("error", "error in collection", _failure_text(report), report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the commands, each on a line of its own."""
        found = [*self._found.values()]
        if self._terminal.empty_hardware_run():
            text = f"--hw={self._run.profile.id} ran no hardware test: nothing was proved about this hardware"
            found.append(Annotation("warning", "no hardware test", text, {}))
        for kind in ("error", "warning", "notice"):
            for one in _at_most([annotation for annotation in found if annotation.kind == kind], SHOWN):
                terminalreporter.write_line(command(one.kind, {**one.place, "title": one.title[:_TITLE]}, _text(one)))

    def _add(
        self,
        kind: str,
        title: str,
        message: str,
        report: pytest.TestReport | pytest.CollectReport,
        together: bool = False,
    ) -> None:
        key = (kind, title, message) if together else (kind, title, report.nodeid)
        one = self._found.setdefault(key, Annotation(kind, title, message, self._place(report)))
        path, colons, name = report.nodeid.partition("::")
        one.tests.append(f"{path.rpartition('/')[2]}{colons}{name}")

    def _place(self, report: pytest.TestReport | pytest.CollectReport) -> dict[str, str]:
        """Return where a test is in the repository; nothing for one elsewhere, such as in site-packages."""
        location: Any = report.location
        if location is None:
            return {}
        # Shipped scenarios are collected through a link, of which GitHub knows no lines.
        path = (self._config.rootpath / location[0]).resolve()
        top = Path(os.environ.get("GITHUB_WORKSPACE") or self._config.rootpath).resolve()
        if not path.is_file() or not path.is_relative_to(top):
            return {}
        return {"file": path.relative_to(top).as_posix(), "line": str((location[1] or 0) + 1)}


def command(kind: str, properties: Mapping[str, str], message: str) -> str:
    """Write a workflow command, escaped as in https://github.com/actions/toolkit (packages/core/src/command.ts)."""
    given = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{kind} {given}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    text = plain(text.encode(errors="backslashreplace"))
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _at_most(annotations: list[Annotation], count: int) -> list[Annotation]:
    """Return at most ``count`` annotations, the last of which lists all that do not fit."""
    if len(annotations) <= count:
        return annotations
    rest = annotations[count - 1 :]
    titles = "\n".join(one.title for one in rest)
    return [*annotations[: count - 1], Annotation(rest[0].kind, f"{len(rest)} more", titles, {})]


def _text(one: Annotation) -> str:
    more = f" and {len(one.tests) - 1} more" if len(one.tests) > 1 else ""
    return "\n".join([one.message, *(f"{test}{more}" for test in one.tests[:1])])


def _failure_text(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return what went wrong, as the report has it."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    if crash:
        return _first_lines(crash.message)
    lines = str(report.longrepr).splitlines()  # longreprtext begins with the name of xdist's worker
    return _first_lines("\n".join([line[1:].strip() for line in lines if line.startswith("E ")] or lines))


def _first_lines(text: str) -> str:
    """Return the first lines of a text."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][:_LINES])
