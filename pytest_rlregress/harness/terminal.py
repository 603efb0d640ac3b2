"""The terminal: header, letters of the verdicts, the answer at the end, and the check of hardware runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress import hardware
from pytest_rlregress.failures import fidelity
from pytest_rlregress.failures.verdicts import EXPECTED, Rank, Verdict, rank
from pytest_rlregress.harness import run_context
from pytest_rlregress.harness.collection import is_shipped
from pytest_rlregress.harness.reports import decides, read_properties
from pytest_rlregress.harness.results import RunResults
from pytest_rlregress.records import answer
from pytest_rlregress.records.expectations import find_obsolete
from pytest_rlregress.records.measurements import Key
from pytest_rlregress.records.reader import find_last, list_gone
from pytest_rlregress.records.record_types import RecordedTest
from pytest_rlregress.stack import COMPONENTS
from pytest_rlregress.util.text import markdown_table, plural, quoted, wrapped

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session

#: How pytest counts and shows a component's check: where it passed, in the summary only.
_CHECKED = {
    "passed": ("components working", "", ""),
    "failed": ("failed", "X", "BROKEN"),
    "skipped": ("skipped", "", ""),
}
_ENTRIES = 3  # of the expectations to delete, in the answer
#: Where one of xdist's workers says how many tests marked long it leaves out.
LEFT_OUT = "rlregress_left_out"
_QUICK = (
    "quick run (--rl-quick): one reproduces and one guard of each failure that needs no engine, server or Ray cluster"
)


class Terminal:
    """Prints what a run is about before it, and what it found after it."""

    def __init__(self, config: pytest.Config, run: Session, results: RunResults) -> None:
        self._config, self._run, self._results = config, run, results
        self._unwritten = ""
        self._obsolete: list[str] = []

    def pytest_report_header(self) -> list[str]:
        """What is gone since the last recorded run; with ``--hw`` the machine, the profile of the run and the stack."""
        versions, machine = self._run.stack.versions, self._run.machine
        if self._results.folder:
            last = next(find_last(self._results.folder, self._run.profile_id), None)
            lost = list_gone(last[1], versions) if last else ""
            reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            if lost:
                reporter.write_line(lost, red=True)  # the lines of a header have no colour
        if not self._run.settings.hw:
            return []
        asked = self._run.settings.hw == "auto"
        return [
            *(hardware.describe_machine(machine, self._run.profiles).splitlines() if asked else ()),
            f"hardware: {self._run.profile.id} ({'; '.join(map(hardware.describe_gpu, machine.gpus)) or 'no GPU'})",
            "stack: " + ", ".join(f"{name} {versions[name]}" for name in COMPONENTS if name in versions),
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Show a verdict's word and letter in pytest's own categories, so that its counts hold."""
        found = read_properties(report)
        verdict = found.get("verdict")
        if "expected" in found and decides(report) and report.passed:
            return EXPECTED, "e", f"{EXPECTED} ({verdict or 'failed'})".upper()
        if "component" in found and decides(report):
            return _CHECKED[report.outcome]
        if verdict is None or report.when == "teardown":
            return None
        category = {"passed": "passed", "skipped": "skipped"}.get(report.outcome, "failed")
        return category, Verdict(verdict).letter, verdict.upper()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from one of xdist's workers how many tests marked long are left out: each collects the same."""
        self._run.left_out = getattr(node, "workeroutput", {}).get(LEFT_OUT, self._run.left_out)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """A hardware run in which no hardware test executed fails; so does one whose report cannot be written."""
        good = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        self._obsolete = self._find_obsolete_entries()
        problems = []
        if self._obsolete:
            said = f"{plural(len(self._obsolete), 'expectation')} to delete"
            problems.append(f"{said}: {'; '.join(self._obsolete[:_ENTRIES])}")
        if self._is_empty_hardware_run():
            problems.append(
                f"--hw={self._run.profile.id} ran no hardware test, so nothing was proved about this hardware "
                "(hardware tests carry the marker hw, or ask for a fixture that computes there)"
            )
        self._results.problem = "; ".join(problems)
        if problems and good:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        try:
            yield
        except OSError as error:  # a full disk must not cost the summary too
            self._unwritten = str(error)
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR

    def _find_obsolete_entries(self) -> list[str]:
        """Find the expectations that this run shows to be obsolete, each as the lines to delete and why.

        A run that did not come to its end, or that chose among the tests of a failure, shows no entry to be fulfilled.
        """
        if not self._run.expectations or self._config.option.collectonly:
            return []
        narrowing = run_context.describe_call(self._run, self._config).narrowing
        whole = all(choice.startswith("--rl-failure") or Path(choice).is_dir() for choice in narrowing)
        partial = self._results.stopped or not whole
        every_test = not narrowing and not self._run.left_out
        tests = () if partial else self._tests
        found = find_obsolete(self._run.expectations, self._run.here, tests, every_test=every_test and not partial)
        return [
            f"{entry.place.partition(':')[0]}, lines {entry.lines[0]} to {entry.lines[1]} ({entry.about}): {why}"
            for entry, why in found
        ]

    def _is_empty_hardware_run(self) -> bool:
        """Return whether the run was to prove something about hardware and no hardware test executed."""
        settings = self._run.settings
        asked = settings.hw is not None and not settings.failure and not self._config.option.collectonly
        return asked and self._run.profile.id != "cpu" and not any(test.extra.hardware for test in self._tests)

    @property
    def _tests(self) -> Collection[RecordedTest]:
        return self._results.tests.values()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """End with the answer, below all that pytest and other plugins say."""
        yield
        write = terminalreporter.write_line
        if self._run.passed_over is not None:
            write(self._whose_tests(self._run.passed_over))
        judged = self.is_about_the_stack()
        sections = self._verbose() if self._config.get_verbosity() > 0 else answer.details(self._tests)
        to_delete = [part for line in self._obsolete for part in wrapped(f"- {line}", rest="  ")]
        more = {"expectations to delete": to_delete, "since the last record": self.since_last()}
        sections = (sections if judged else {}) | more
        for title, lines in sections.items():
            if lines:
                terminalreporter.write_sep("=", title)
            for line in lines:
                write(line)
        if judged:
            self._write_answer(terminalreporter)
        if self._unwritten:
            write(f"FAILED: a report could not be written: {self._unwritten}", red=True)

    def is_about_the_stack(self) -> bool:
        """Return whether there is anything to answer: not in a run of tests that have nothing to do with the stack."""
        told = self._run.settings.hw or any(test.extra.verdict or test.extra.component for test in self._tests)
        return bool(told and self._tests) and not self._config.option.collectonly

    def answer(self) -> list[str]:
        """Answer the run in up to three lines, and say what it left out."""
        chosen = bool(run_context.describe_call(self._run, self._config).narrowing)
        lines = answer.summarise(self._tests, self._run.profile_id, chosen=chosen, problem=self._results.problem)
        if self._run.quick:
            lines.append(_QUICK)
        elif self._run.left_out:
            lines.append(f"{self._run.left_out} x marked long: --rl-long runs them")
        return lines

    def red_command(self) -> str:
        """Return the command that runs what failed again; "" where nothing did."""
        if all(test.status != "failed" for test in self._tests):
            return ""
        from pytest_rlregress.harness.red_part import make_red_command

        return make_red_command(self._config, self._results.tests, self._config.rootpath)

    def _write_answer(self, terminalreporter: pytest.TerminalReporter) -> None:
        first, *more = self.answer()
        terminalreporter.write_sep("=", "answer")
        good = first.startswith("OK")
        for part in wrapped(first, rest="  "):
            terminalreporter.write_line(part, green=good, red=not good)
        for part in [part for line in more for part in wrapped(line, rest="  ")]:
            terminalreporter.write_line(part)
        if command := self.red_command():
            terminalreporter.write_line("To run the red part again:")
            terminalreporter.write_line(command)  # in one line: it is copied

    def since_last(self) -> list[str]:
        """Tell what changed since the last record of this hardware, quick runs and whole ones apart."""
        written, folder = self._results.written, self._results.folder
        if written is None or folder is None:
            return []
        from pytest_rlregress.records.history import open_history
        from pytest_rlregress.records.night import compare
        from pytest_rlregress.records.night_text import tell_since_last

        for path, record in find_last(folder, self._run.profile_id):
            if path != written and record.results.extra.run.is_quick == self._run.quick:
                return tell_since_last(compare(open_history([path, written]), path, [written]))
        return []

    def _verbose(self) -> dict[str, list[str]]:
        """Tell everything: each failure, component, golden and skip."""
        skipped = Counter(test.message for test in self._tests if test.raw_status == "skipped")
        goldens = [line for test in self._tests if test.extra.golden for line in _golden(test.extra.golden)]
        return {
            "components": self._components(),
            "verdicts": self._table(),
            "goldens": [part for line in goldens for part in wrapped(line, rest="    ")],
            "not run here": [
                part for reason, count in skipped.items() for part in wrapped(f"{count} x {reason}", rest="    ")
            ],
            **answer.details(self._tests),
        }

    def _components(self) -> list[str]:
        """Tell of each component that was checked whether it works, and why not."""
        versions = self._run.stack.versions
        checked = [test for test in self._tests if test.extra.component]
        named = {
            test.name: " ".join(filter(None, (test.extra.component, versions.get(test.extra.component))))
            for test in checked
        }
        words = {"failed": "broken", "skipped": "not driven"}
        bad = [test for test in checked if test.status in words]
        lines = [f"{named[test.name]}: {words[test.status]}: {test.extra.note}" for test in bad]
        working = [named[test.name] for test in checked if test not in bad]
        lines += [f"working: {', '.join(working)}"] if working else []
        return [part for line in lines for part in wrapped(line, rest="    ")]

    def _table(self) -> list[str]:
        """Lay out every failure with its verdicts, in the order of the catalogue."""
        tests: dict[str, list[RecordedTest]] = {}
        for test in self._tests:
            if test.extra.failure:
                tests.setdefault(test.extra.failure, []).append(test)
        rows = [
            [
                failure.id,
                failure.seen_on,
                *(_gravest(test for test in tests[failure.id] if test.extra.side == side) for side in fidelity.SIDES),
                fidelity.summary(_fidelity(tests[failure.id])) or "-",
                ", ".join(
                    dict.fromkeys(quoted(test.extra.subject) for test in tests[failure.id] if test.extra.subject)
                ),
            ]
            for failure in self._run.catalogue.values()
            if failure.id in tests
        ]
        return markdown_table(["failure", "seen on", *fidelity.SIDES, "fidelity", "subject"], rows) if rows else []

    def _whose_tests(self, passed_over: list[str]) -> str:
        """Say how many tests were the shipped ones and how many the user's, and where more are that did not run."""
        tests = [test for test in self._tests if not test.extra.component]
        shipped = sum(is_shipped(self._config.rootpath / test.file_path) for test in tests)
        folders = [os.path.relpath(folder) for folder in self._run.settings.scenarios]
        own = f"{len(tests) - shipped:,} of {', '.join(folders)}" if folders else "none"
        rest = [place for place in passed_over if place not in folders and not is_shipped(Path(place))]
        hint = f" ({', '.join(rest)} did not run: name it here, or in ini rlregress_scenarios)" if rest else ""
        return f"shipped scenarios: {shipped:,}; yours: {own}{hint}"


def _gravest(tests: Iterable[RecordedTest]) -> str:
    """Render the gravest verdict, with how many of the tests gave it."""
    verdicts = Counter(test.extra.verdict for test in tests)
    worst = next((verdict for verdict in Verdict if verdicts[verdict]), "")
    return f"{worst} {verdicts[worst]}/{verdicts.total()}" if worst else "-"


def _fidelity(tests: Iterable[RecordedTest]) -> Counter[str]:
    """Count tests by how real they were; of those that did not run nothing was real."""
    return Counter(
        test.extra.fidelity or fidelity.NOT_SAID for test in tests if rank(test.extra.verdict) is not Rank.NOTHING
    )


def _golden(found: dict[str, Any]) -> list[str]:
    """Describe the comparison of a test's numbers with its golden, in lines."""
    if found["state"] == "none":  # the reason of the skip says it
        return []
    words = {"max": "max |Δ|", "drift": "mean Δ"}
    used = [f"{words[name]} {share:.0%}" for name, share in found["used"].items() if share is not None]
    about = f"{found['state']}: {found['step']}, {Key(**found['key'])}" + (
        f"; of its tolerance used: {', '.join(used)}" if used else ""
    )
    return [about, *(f"  {line}" for line in found["differences"]), *(f"  notice: {line}" for line in found["notes"])]
