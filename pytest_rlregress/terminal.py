"""The terminal: header, letters of the verdicts, the table at the end, and the check of hardware runs."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress import fidelity, hardware
from pytest_rlregress.containment.reports import decides
from pytest_rlregress.fixtures.step_key import Key
from pytest_rlregress.harness import properties
from pytest_rlregress.harness.checks import log_reports
from pytest_rlregress.harness.collection import is_shipped
from pytest_rlregress.harness.selection import SAID
from pytest_rlregress.stack import COMPONENTS
from pytest_rlregress.util.text import wrapped
from pytest_rlregress.verdicts import Rank, Verdict, rank

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session

#: How pytest counts and shows a component's check: where it passed, in the summary only.
_CHECKED = {
    "passed": ("components working", "", ""),
    "failed": ("failed", "X", "BROKEN"),
    "skipped": ("skipped", "", ""),
}
_NOTE_LINES = 3  # what failed is printed in full above the table
_GAP = "  "
_COLUMNS = {"failure": 26, "seen on": 14, "reproduces": 16, "guards": 14, "fidelity": 12, "subject": 22}


@dataclass
class VerdictRow:
    """One failure's row of the table."""

    failure: str
    seen_on: str
    verdicts: dict[str, Counter[str]] = field(default_factory=lambda: {"reproduces": Counter(), "guards": Counter()})
    fidelity: Counter[str] = field(default_factory=Counter)
    subjects: dict[str, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    on_card: str = ""


class Terminal:
    """Collects the verdicts from the reports, wherever the tests ran, and prints them."""

    def __init__(self, config: pytest.Config, run: Session) -> None:
        self._config, self._run = config, run
        self._rows: dict[str, VerdictRow] = {}
        self._hardware_tests = 0
        self._skips: Counter[str] = Counter()
        self._goldens: dict[str, dict[str, Any]] = {}
        self._components: dict[str, tuple[str, str]] = {}
        self._unwritten = ""
        self._files: Counter[Path] = Counter()

    def pytest_report_header(self) -> list[str]:
        """What is gone since the last recorded run; with ``--hw`` the machine, the profile of the run and the stack."""
        versions, machine = self._run.stack.versions, self._run.machine
        if self._run.settings.record_dir:
            from pytest_rlregress.records.reader import find_last, list_gone

            last = next(find_last(self._run.settings.record_dir, self._run.profile_id), None)
            lost = list_gone(last[1], versions) if last else ""
            reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            if lost:
                reporter.write_line(lost, red=True)  # the lines of a header have no colour
        if not self._run.settings.hw:
            return []
        asked = self._run.settings.hw == "auto"
        return [
            *(hardware.describe_machine(machine, self._run.profiles).splitlines() if asked else ()),
            f"hardware: {self._run.profile.id} of {'; '.join(map(hardware.describe_gpu, machine.gpus)) or 'no GPU'}",
            "stack: " + ", ".join(f"{name} {versions[name]}" for name in COMPONENTS if name in versions),
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Show a verdict's word and letter in pytest's own categories, so that its counts hold."""
        found = properties.read(report)
        verdict = found.get("verdict")
        if "component" in found and decides(report):
            return _CHECKED[report.outcome]
        if verdict is None or report.when == "teardown":
            return None
        category = {"passed": "passed", "skipped": "skipped"}.get(report.outcome, "failed")
        return category, Verdict(verdict).letter, verdict.upper()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's verdict to its failure's row; before, log the checks of components that were made for it."""
        if not hasattr(self._config, "workerinput"):
            log_reports(self._config, report, self._components)
        found = properties.read(report)
        if "component" in found:
            if decides(report):
                self._components[found["component"]] = report.outcome, found.get("note", "")
            return
        if decides(report):
            self._files[self._config.rootpath / report.location[0]] += 1
        if found.get("hardware") and report.when == "call":
            self._hardware_tests += 1
        golden = json.loads(found.get("golden", "{}"))
        if golden and golden["state"] != "none":  # that is what 'not run here' says
            self._goldens[report.nodeid] = golden
        if report.skipped and isinstance(report.longrepr, tuple) and not hasattr(report, "wasxfail"):
            self._skips[report.longrepr[2].removeprefix("Skipped: ")] += 1
        # The teardown report repeats the verdict.
        if "verdict" not in found or report.when == "teardown":
            return
        failure = self._run.catalogue[found["failure"]]
        row = self._rows.setdefault(failure.id, VerdictRow(failure.id, failure.seen_on))
        row.verdicts[found["side"]][found["verdict"]] += 1
        if rank(found["verdict"]) is not Rank.NOTHING:  # of tests that did not run nothing was real
            row.fidelity[found.get("fidelity", fidelity.NOT_SAID)] += 1
        for value, seen in ((found.get("subject"), row.subjects), (found.get("note"), row.notes)):
            if value:
                seen[value] = None
        if "hw" in report.keywords:
            row.on_card = failure.on_card

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """A hardware run in which no hardware test executed fails; so does one whose report cannot be written."""
        good = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if good and self.empty_hardware_run():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        try:
            yield
        except OSError as error:  # a full disk must not cost the summary too
            self._unwritten = str(error)
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR

    def empty_hardware_run(self) -> bool:
        """Whether the run was to prove something about hardware and no hardware test executed."""
        worker = hasattr(self._config, "workerinput")
        asked = self._run.settings.hw is not None and not self._config.option.collectonly
        return asked and not worker and self._run.profile.id != "cpu" and self._hardware_tests == 0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The verdict table, the skips with their reasons, and what made a hardware run void."""
        write = terminalreporter.write_line
        goldens = [line for golden in self._goldens.values() for line in _golden(golden)]
        sections = {
            "components": components(self._components, self._run.stack.versions),
            "verdicts": table([self._rows[key] for key in self._run.catalogue if key in self._rows]),
            "goldens": [part for line in goldens for part in wrapped(line, rest="    ")],
            "not run here": [
                part for reason, count in self._skips.items() for part in wrapped(f"{count} x {reason}", rest="    ")
            ],
        }
        if self._run.quick:
            sections["not run here"] = wrapped(SAID, rest="    ")
        elif self._run.left_out:
            sections["not run here"].append(f"{self._run.left_out} x marked long: --rl-long runs them")
        if self._run.passed_over is not None:
            write(self._whose_tests(self._run.passed_over))
        for title, lines in sections.items():
            if lines:
                terminalreporter.write_sep("=", title)
            for line in lines:
                write(line)
        if self._unwritten:
            write(f"FAILED: a report could not be written: {self._unwritten}", red=True)
        if self.empty_hardware_run():
            write(
                f"FAILED: --hw={self._run.profile.id} ran no hardware test: nothing was proved about this hardware "
                "(hardware tests carry the marker hw, or ask for a fixture that computes there; see 'not run here' for "
                "what was skipped).",
                red=True,
            )

    def _whose_tests(self, passed_over: list[str]) -> str:
        """Say how many tests were the shipped ones and how many the user's, and where more are that did not run."""
        shipped = sum(count for file, count in self._files.items() if is_shipped(file))
        folders = [os.path.relpath(folder) for folder in self._run.settings.scenarios]
        own = f"{self._files.total() - shipped:,} of {', '.join(folders)}" if folders else "none"
        rest = [place for place in passed_over if place not in folders]
        hint = f" ({', '.join(rest)} did not run: name it here, or in ini rlregress_scenarios)" if rest else ""
        return f"shipped scenarios: {shipped:,}; yours: {own}{hint}"


def components(checked: Mapping[str, tuple[str, str]], versions: Mapping[str, str]) -> list[str]:
    """Render what the checks of the components came to: a row for each that does not work, a line for the rest.

    Args:
        checked: The outcome of each component's check, and why it did not pass.
        versions: What is installed.
    """
    named = {name: f"{name} {versions[name]}" if name in versions else name for name in checked}
    working = [named[name] for name, (outcome, _) in checked.items() if outcome == "passed"]
    lines = []
    for name, (outcome, note) in checked.items():
        if outcome != "passed":
            lines.append(f"{named[name]}: {'broken' if outcome == 'failed' else 'not driven'}")
            lines += wrapped(note, "    ", "    ")[:_NOTE_LINES]
    return lines + (wrapped(f"working: {', '.join(working)}", rest="    ") if working else [])


def table(rows: Collection[VerdictRow]) -> list[str]:
    """Render the verdict table, a line a failure, its notes below it; nothing without rows.

    In 114 columns. Ids stay whole, to be copied: one that is longer than its column stands on a line of its own.
    """
    if not rows:
        return []
    widths = [*_COLUMNS.values()]
    lines = [_line(list(_COLUMNS), widths), "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))]
    for row in rows:
        sides = [_cell(side) for side in row.verdicts.values()]
        real = fidelity.summary(row.fidelity) or "-"
        cells = [row.failure, row.seen_on, *sides, real, ", ".join(row.subjects)]
        if len(row.failure) > widths[0]:
            lines.append(row.failure)
            cells[0] = ""
        columns = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
        lines += [_line(list(parts), widths) for parts in zip_longest(*columns, fillvalue="")]
        for note in filter(None, [*row.notes, row.on_card]):
            lines += wrapped(note, "    ", "    ")[:_NOTE_LINES]
    return lines


def _wrap(cell: str, width: int) -> list[str]:
    """Wrap a cell; a name that is too long breaks after a colon, or else after a dot or a _."""
    lines = [""]
    for part in re.split(r"(?<=[\s:])", cell):
        for piece in [part] if len(part) <= width else re.split(r"(?<=[._])", part):
            if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
                lines.append("")
            lines[-1] += piece
    return [line.rstrip() for line in lines]


def _line(cells: list[str], widths: list[int]) -> str:
    return _GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cell(verdicts: Counter[str]) -> str:
    """Render the gravest verdict, with how many of the tests gave it."""
    worst = next((verdict for verdict in Verdict if verdicts[verdict]), "")
    return f"{worst} {verdicts[worst]}/{verdicts.total()}" if worst else "-"


def _golden(found: dict[str, Any]) -> list[str]:
    """Describe the comparison of a test's numbers with its golden, in lines."""
    words = {"max": "max |Δ|", "drift": "mean Δ"}
    used = [f"{words[name]} {share:.0%}" for name, share in found["used"].items() if share is not None]
    about = f"{found['state']}: {found['step']}, {Key(**found['key'])}" + (
        f"; of its tolerance used: {', '.join(used)}" if used else ""
    )
    return [about, *(f"  {line}" for line in found["differences"]), *(f"  notice: {line}" for line in found["notes"])]
