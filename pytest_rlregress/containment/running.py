"""Run one test in the child of its group: what came of it, whichever way it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from pytest_rlregress.containment.child import Limits
from pytest_rlregress.containment.client import ContainmentError
from pytest_rlregress.containment.death import NO_DIAGNOSTICS, Death, Diagnostics
from pytest_rlregress.containment.grouping import ChildGroup, gpus_of, limits_of
from pytest_rlregress.containment.pool import Pool
from pytest_rlregress.containment.reports import ChildMessages, add_diagnostics, died, outcome_of
from pytest_rlregress.containment.reruns import wanted
from pytest_rlregress.containment.worker import key_of
from pytest_rlregress.scenarios import component_checks
from pytest_rlregress.verdicts import Outcome

if TYPE_CHECKING:
    from pytest_rlregress.session import Session

#: The checks of components that start nothing: their child stays beside the others, and locks no GPU.
CHECKS = ChildGroup(component_checks.GROUP)
#: On each contained test: the group that it shares a child with.
GROUP: pytest.StashKey[ChildGroup] = pytest.StashKey()
#: On a contained test that pytest-timeout limits: after how many seconds.
TIMEOUT: pytest.StashKey[float] = pytest.StashKey()
_TAKEN_OVER = "no report of this test: a hook of a plugin or a conftest.py took it over (pytest_runtest_protocol?)"


@dataclass(frozen=True)
class Ran:
    """What came of running a test, or of not running it.

    Attributes:
        death: How its process ended, if it did not live.
        diagnostics: What its other processes left.
        again: Whether it failed and is to be run once more.
        stopped: Why it was not run.
    """

    reports: list[pytest.TestReport]
    death: Death | None = None
    diagnostics: Diagnostics = NO_DIAGNOSTICS
    again: bool = False
    stopped: Outcome | None = None

    def outcome(self, report: pytest.TestReport) -> Outcome:
        """What the report that decides the test amounts to."""
        return self.stopped or outcome_of(report, self.death, self.diagnostics)


class Runner:
    """Runs tests in the children of a pool.

    Args:
        run: What the session knows.
        say: Writes a line on the terminal.

    Attributes:
        warm: Modules that are imported before a child with tests of the stack is forked.
    """

    def __init__(self, pool: Pool, run: Session, say: Callable[[str], None]) -> None:
        self._pool, self._run, self._say = pool, run, say
        self._notes: set[str] = set()
        self.warm: tuple[str, ...] = ()

    def run(self, item: pytest.Item, group: ChildGroup, following: str | None, reruns: int) -> Ran:
        """Run a test in the child of a group.

        Args:
            item: The test.
            group: Whose child it is.
            following: The test that follows there, None for none: then the child is ended; "" if that is not known.
            reruns: How often it may be run again if it fails.
        """
        if not group.alone and group != CHECKS:
            self._pool.stop_groups(but=(group, CHECKS))
        mates = [other for other in contained(item.session) if other.stash[GROUP] == group]
        check = item.path == component_checks.FILE
        modules = self.warm if check or any(map(self._run.may_touch, mates)) else ()
        needed = [gpus_of(one) for one in (item, *mates) if one is item or not self._run.unavailable(one)]
        gpus = 0 if group == CHECKS else max(needed)
        files = [mate.path for mate in mates]
        if check or not group.alone:
            files.append(component_checks.FILE)
        messages, diagnostics = ChildMessages(item, self._say, self._note), NO_DIAGNOSTICS
        again, begun, waited = False, time.monotonic(), 0.0
        try:
            child = self._pool.child(group, files, modules, gpus)
            death = child.await_ready(messages, self._run.limits)
            waited = time.monotonic() - begun
            death = death or child.run(key_of(item), following, self._limits_of(item), messages)
            diagnostics = add_diagnostics(messages.reports, child.diagnostics)
            again = reruns > 0 and (death is not None or any(wanted(item, report) for report in messages.reports))
            if death is not None:
                self._pool.drop(group)
            elif messages.retired:
                self._say(f"{messages.retired}. Its process is given up, the next test gets a new one.")
                self._pool.stop(group, lambda kind, value: None)  # whatever comes of its fixtures' teardown
            elif following is None or again:
                death = self._pool.stop(group, messages)
        except (ContainmentError, OSError, ValueError) as error:  # such as a full disk
            death = Death("crashed", None, f"could not be contained: {error}", "")
        if death is None and not messages.reports and not messages.errors:
            messages.errors.append(_TAKEN_OVER)
        if death is not None or messages.errors:
            messages.reports.append(died(item, messages, death))
        messages.reports[0].duration += waited  # the imports of the stack, for --durations
        return Ran(messages.reports, death, diagnostics, again)

    def _limits_of(self, item: pytest.Item) -> Limits:
        """What a test may use: its marker's values, else pytest-timeout's limit, else the run's."""
        default = self._run.limits
        return limits_of(item, replace(default, seconds=item.stash.get(TIMEOUT, default.seconds)))

    def _note(self, line: str) -> None:
        """Say a line that every child would say once."""
        if line not in self._notes:
            self._notes.add(line)
            self._say(line)


def contained(session: pytest.Session) -> list[pytest.Item]:
    """The session's contained tests."""
    return [item for item in session.items if GROUP in item.stash]
