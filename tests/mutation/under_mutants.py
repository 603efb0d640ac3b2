"""A pytest plugin that runs each guard unmutated, and then under the mutants of the functions that it reaches.

It runs the guards in pytest's own process (``--rl-inline``), so that an engine serves all mutants. Each run is written
to a journal, from which another process goes on where this one was ended by a mutant.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from mutation import reach
from pytest_rlregress.harness.items import find

VARIABLE = "MUTANT_UNDER_TEST"
LIMIT_TIMES, LIMIT_MORE = 5, 5.0  # a mutant may take 5 times what the guard takes, and 5 seconds to be set up
ENDED = "ended the process"
RESTART = 77  # exit code: another process has to go on


class MutantTakesTooLong(BaseException):
    """Raised in the main thread when a mutant has not ended in time; remedies catch no such class."""


class Journal:
    """What was run so far, one JSON object a line.

    Attributes:
        guards: Of each guard its seconds and the functions that it reaches, or why it is of no use.
        tried: Pairs of mutant and guard.
        killed: Mutants that need no other guard.
        suspects: Mutants after which a guard failed unmutated, once.
        restarted: Guards that failed unmutated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.guards: dict[str, dict[str, Any]] = {}
        self.tried: set[tuple[str, str]] = set()
        self.killed: set[str] = set()
        self.suspects: set[str] = set()
        self.restarted: set[str] = set()
        last: dict[str, Any] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            last = json.loads(line)
            self._take(last)
        if "begins" in last:
            self.write(mutant=last["begins"], guard=last["guard"], verdict="killed", why=ENDED)
        elif "looks" in last:
            self.write(guard=last["looks"], useless=ENDED)

    def write(self, **entry: Any) -> None:
        """Add a line, at once."""
        with self._path.open("a") as file:
            print(json.dumps(entry), file=file)
        self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        if "mutant" in entry:
            self.tried.add((entry["mutant"], entry["guard"]))
            {"killed": self.killed, "suspect": self.suspects}.get(entry["verdict"], set()).add(entry["mutant"])
            if entry["verdict"] == "suspect":
                self.tried.discard((entry["mutant"], entry["guard"]))
        elif "restarts" in entry:
            self.restarted.add(entry["restarts"])
        elif "seconds" in entry or "useless" in entry:
            self.guards[entry["guard"]] = entry


class UnderMutants:
    """The loop over guards and mutants, instead of pytest's over tests."""

    def __init__(self, folder: Path) -> None:
        plan = json.loads((folder / "plan.json").read_text())
        self._mutants: dict[str, str] = plan["mutants"]
        self._longest: float = plan["longest"]
        self._subjects: set[str] = set(plan["failures"])
        self._journal = Journal(folder / "journal.jsonl")
        self._failed, self._skipped, self._seconds = "", False, 0.0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the guards of failures that have a remedy."""
        items[:] = [item for item in items if any(one.args[0] in self._subjects for one in item.iter_markers("guards"))]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether the guard that runs fails."""
        self._skipped |= report.skipped
        if report.when == "call":  # without the start of an engine, which is once for many
            self._seconds = round(report.duration, 3)
        if report.failed and not self._failed:
            self._failed = report.longreprtext.strip().splitlines()[-1:][0][:300] if report.longreprtext else "failed"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the guards of each group once, then the fastest first under their mutants."""
        groups: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            test = find(item)
            groups.setdefault("" if test is None or test.group.alone else test.group.name, []).append(item)
        left = [items for items in groups.values() if any(map(self._left, items))]
        for item in left[0] if left else []:
            if item.nodeid not in self._journal.guards:
                self._look_at(item)
        for item in sorted(left[0] if left else [], key=lambda item: self._guard(item).get("seconds", 0.0)):
            if mutants := self._left(item):
                self._try(item, mutants)
        if left[1:]:  # two engines in one process are one too many
            pytest.exit("the next group in another process", returncode=RESTART)
        self._journal.write(finished=True)
        return True

    def _guard(self, item: pytest.Item) -> dict[str, Any]:
        return self._journal.guards.get(item.nodeid, {"reached": self._mutants.values()})

    def _left(self, item: pytest.Item) -> list[str]:
        """The mutants that a guard is to be run under, all as long as it was not looked at."""
        journal, reached = self._journal, self._guard(item).get("reached", ())
        names = (name for name, function in self._mutants.items() if function in reached)
        return [name for name in names if name not in journal.killed and (name, item.nodeid) not in journal.tried]

    def _look_at(self, item: pytest.Item) -> None:
        reach.take()
        self._journal.write(looks=item.nodeid)
        passed = self._run_under("stats", item, item.session, 0.0)
        seconds, reached = self._seconds, sorted(reach.take())
        if passed and not self._skipped and seconds <= self._longest:
            self._journal.write(guard=item.nodeid, seconds=seconds, reached=reached)
        else:
            self._journal.write(
                guard=item.nodeid, useless=self._failed or ("skipped" if self._skipped else f"takes {seconds:.0f} s")
            )

    def _try(self, item: pytest.Item, mutants: list[str]) -> None:
        journal = self._journal
        if not self._run(item, item.parent):
            if item.nodeid in journal.restarted:
                journal.write(guard=item.nodeid, useless=f"does not pass each time: {self._failed}")
            self._restart(item, self._failed)
        limit = LIMIT_TIMES * max(self._seconds, journal.guards[item.nodeid]["seconds"]) + LIMIT_MORE
        for name in mutants:
            if name in journal.killed:
                continue
            journal.write(begins=name, guard=item.nodeid, limit=limit)
            begun = time.monotonic()
            passed = self._run_under(name, item, item.parent, limit)
            seconds, why = round(time.monotonic() - begun, 3), self._failed
            if passed or self._run(item, item.parent):
                verdict = "survived" if passed else "killed"
                journal.write(mutant=name, guard=item.nodeid, verdict=verdict, why=why, seconds=seconds)
            else:  # what fails now may have failed because of an earlier mutant: once more in a new process
                verdict = "killed" if name in journal.suspects else "suspect"
                journal.write(mutant=name, guard=item.nodeid, verdict=verdict, why=why, seconds=seconds)
                self._restart(item, self._failed)
        self._run(item, item.session)

    def _run_under(self, name: str, item: pytest.Item, after: pytest.Collector | None, limit: float) -> bool:
        """Run a test under a mutant, and say whether it did not fail; 0 means no limit."""

        def too_long(number: int, frame: object) -> None:
            raise MutantTakesTooLong(f"not done in {limit:.0f} s")

        before = signal.signal(signal.SIGALRM, too_long)
        os.environ[VARIABLE] = name
        signal.setitimer(signal.ITIMER_REAL, limit, 5.0)
        try:
            self._run(item, after)
            return not self._failed
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.environ.pop(VARIABLE, None)
            signal.signal(signal.SIGALRM, before)

    def _run(self, item: pytest.Item, after: pytest.Item | pytest.Collector | None) -> bool:
        """Run a test, and say whether it passed; fixtures that ``after`` needs as well stay."""
        self._failed, self._skipped, self._seconds = "", False, 0.0
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return not self._failed and not self._skipped

    def _restart(self, item: pytest.Item, why: str) -> None:
        self._journal.write(restarts=item.nodeid, why=why)
        pytest.exit(f"{item.nodeid} fails unmutated: {why}", returncode=RESTART)


def pytest_configure(config: pytest.Config) -> None:
    """Take pytest's loop over."""
    config.pluginmanager.register(UnderMutants(reach.FOLDER), "rlregress-mutation")
