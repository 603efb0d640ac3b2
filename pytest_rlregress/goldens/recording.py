"""``--rl-update-goldens`` in the pytest process: checks first, writes the goldens when the run has ended well."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_rlregress.goldens.comparison import compare, list_moved
from pytest_rlregress.goldens.golden import Golden, GoldenError, find
from pytest_rlregress.harness.reports import take_property
from pytest_rlregress.stack import COMPONENTS
from pytest_rlregress.util.files import write_whole
from pytest_rlregress.util.git import GitError, git, run_git
from pytest_rlregress.util.text import wrapped

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session


class Recording:
    """Collects the goldens that tests measured, and writes them if the run is a good one.

    Raises:
        pytest.UsageError: The run could not write any.
    """

    def __init__(self, config: pytest.Config, run: Session) -> None:
        self._config, self._run = config, run
        self._drafts: list[Golden] = []
        self._told: list[str] = []
        source = run.settings.source["update_goldens"]
        if run.settings.hw is None:
            raise pytest.UsageError(f"{source} needs --hw: a golden belongs to one GPU or CPU model. Try --hw=auto")
        try:
            self._commit = find_commit(run.settings.goldens)
        except ValueError as error:
            raise pytest.UsageError(f"{source}: no golden can be recorded: {error}.") from None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a measured golden off its report: it isn't a property of the test."""
        draft = take_property(report, "golden_draft")
        if draft and report.when == "call":
            self._drafts.append(msgspec.json.decode(draft, type=Golden))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the goldens, or fail the run that could not."""
        if self._config.option.collectonly:
            return
        if session.testsfailed:
            self._told = [f"not recorded: the run has failures ({session.testsfailed})"]
        elif session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            self._told = [f"not recorded: the run was ended, or failed (exit code {int(session.exitstatus)})"]
        elif not self._drafts:
            self._told = ["not recorded: no test measured a golden (if it was skipped, 'not run here' says why)"]
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for draft in [] if self._told else self._drafts:
            try:
                self._told += self._write(draft)
            except OSError as error:  # must not cost the summary too
                self._told.append(f"not recorded: {error}")
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which goldens were written, and why others were not."""
        if self._told:
            terminalreporter.write_sep("=", "goldens")
        for line in self._told:
            for part in [line] if line.startswith("recorded") else wrapped(line, rest="    "):  # a path stays whole
                terminalreporter.write_line(part, red=line.startswith("not recorded"))

    def _write(self, draft: Golden) -> list[str]:
        """Write one golden; return the lines that describe it."""
        versions = self._run.stack.versions
        origin = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": self._commit,
            "driver": self._run.machine.driver,
            "python": platform.python_version(),
            "versions": {name: versions[name] for name in COMPONENTS if name in versions},
        }
        golden = msgspec.structs.replace(draft, origin=origin)
        folder = self._run.settings.goldens.resolve()
        changes = []
        try:
            before = find(folder, golden.step, golden.key)
            if before:
                found, then = compare(before, golden.settings, golden.runs), before.origin
                when = f"({then.get('date')}, commit {then.get('commit')})"
                changes = [f"its numbers agree with those of the one before {when}"]
                if found.differences:
                    changes = [f"its numbers are not those of the one before {when}:", *found.differences]
                changes += [*found.notes, *list_moved(then, golden.origin["versions"])]
        except GoldenError as error:
            changes = [f"in place of an unreadable golden: {error}"]
        folder.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(golden), indent=1).decode()
        write_whole(folder / golden.file, text, sync=True)
        return [f"recorded: {folder / golden.file}", *changes]


def find_commit(folder: Path) -> str:
    """Return the commit of the checkout that goldens are to be written to; the folder need not be there yet.

    Raises:
        ValueError: It is in no checkout, git ignores it, or a tracked file other than a golden is changed.
    """
    elsewhere = "name a folder of a checkout in ini rlregress_goldens"
    folder = folder.resolve()
    there = next(one for one in (folder, *folder.parents) if one.is_dir())
    try:
        commit = git(there, "rev-parse", "HEAD")
        changed = git(there, "status", "--porcelain", "--untracked-files=no", "--", ":/", f":(exclude){folder}")
    except GitError:
        raise ValueError(f"{folder} isn't in a git checkout with a commit: {elsewhere}") from None
    if run_git(there, "check-ignore", "--quiet", str(folder)).returncode == 0:
        raise ValueError(f"{folder} is ignored by git, so that no golden there would be committed: {elsewhere}")
    if changed:
        raise ValueError(
            f"the checkout of {folder} is not clean, so that no commit would say what was recorded: commit or stash "
            f"first what git status lists: {', '.join(line[3:] for line in changed.splitlines()[:5])}"
        )
    return commit
