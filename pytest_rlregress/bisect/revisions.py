"""Which commit of a checkout: git's own bisect asks, the same trials answer, in a worktree of their own.

``git bisect run`` starts a step at each commit that it checks out. The step asks this process, which tries the commit
as any other candidate, and gives git the exit code: 0 or 1, 125 for unknown; where this process ends, 255 to stop.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_rlregress.bisect import build_answer
from pytest_rlregress.bisect.answers.answer import Answer, Culprit, NotFound, SeenFailure, Skipped
from pytest_rlregress.bisect.answers.progress import ProgressWindow
from pytest_rlregress.bisect.checkout import revision_step, worktree
from pytest_rlregress.bisect.checkout.commits import Commits, opened
from pytest_rlregress.bisect.checkout.worktree import Commit, WorktreeError
from pytest_rlregress.bisect.context import BisectContext
from pytest_rlregress.bisect.followed_test import FollowedTest, NoAnswer, follow, skipped
from pytest_rlregress.bisect.trials.observations import State
from pytest_rlregress.bisect.trials.runner import Candidate
from pytest_rlregress.environments import contents
from pytest_rlregress.environments.uv import Installer
from pytest_rlregress.stack import locks
from pytest_rlregress.util.git import git, start_git

_SKIP = 125
_PRINTED = 1_000_000


def bisect(work: BisectContext) -> Answer:
    """Which commit of a checkout, between two revisions.

    Raises:
        GitError: No checkout, an unknown revision, …
    """
    options = work.options
    with opened(
        options.repo,
        options.revisions,
        request=work.request,
        held=lambda name: contents.of_this_environment(name, _needed(work, name), options.with_editable),
        environments=work.environments,
        installer=Installer(work.settings, options.no_network, work.progress.say),
        folder=options.cache_dir / "worktrees",
    ) as commits:
        ends = good, bad = commits.candidate(commits.good), commits.candidate(commits.bad)
        held = commits.held
        question = {"checkout": str(commits.top), "good": good.label, "bad": bad.label, "held": held.lock.digest}
        with work.runner(question, commits, commits.request) as runner, commits.folder():
            try:
                case = follow(good, bad, runner, work.progress)
                found = narrow(commits, case)
            except NoAnswer as error:
                return build_answer.not_found(work, error.why, ends, runner, held.lock, held.left_out)
            last, first = found.culprit.last_good.label, found.culprit.first_bad.label
            return build_answer.found(
                work,
                case,
                held.lock,
                build_answer.command(work, "--revisions", f"{last}..{first}", "--repo", str(options.repo)),
                culprits=[found.culprit],
                edge=found.tested,
                left_out=held.left_out,
                days=(commits.good.day, commits.bad.day),
            )


def _needed(work: BisectContext, name: str) -> tuple[str, ...] | None:
    """What the tests say they need; None also where what the project itself needs is not known."""
    return work.needed if name in locks.installed().lines else None


@dataclass(frozen=True)
class CommitRange:
    """Where a test's verdict flips.

    Attributes:
        culprit: The last good commit and the first bad one.
        tested: The last good candidate and the first bad one, of those that were tried.
    """

    culprit: Culprit
    tested: tuple[Candidate, Candidate]


@dataclass(frozen=True)
class _Search:
    """Git's bisect of some commits: from the older end, which has the state ``before``, to the newer one."""

    commits: Commits
    older: Commit
    newer: Commit
    before: State
    after: State


def narrow(commits: Commits, case: FollowedTest) -> CommitRange:
    """Have git's bisect ask for commits until the one is found at which the test flips; both ends were tried.

    Raises:
        NoAnswer: The good end is no ancestor of the bad one, and what both come from is bad.
        GitError: git cannot go on.
    """
    good, bad = commits.good, commits.bad
    if worktree.comes_before(commits.path, bad.id, good.id):
        search = _Search(commits, bad, good, State.BAD, State.GOOD)
    else:
        search = _Search(commits, good, bad, State.GOOD, State.BAD)
    printed = _bisect(search, case)
    flips = _flips(commits)
    merge_base = re.search(r"merge base ([0-9a-f]+) is bad", printed)
    if merge_base:
        older, repaired = (commits.candidate(one).label for one in (worktree.about(commits.path, merge_base[1]), good))
        reason = f"{older}, which both ends come from, is bad too: the failure was repaired on the way to {repaired}"
        raise NoAnswer(NotFound("not monotone", older, repaired, reason))
    if not flips:
        raise WorktreeError(f"git bisect found nothing: {(printed.splitlines() or ['it printed nothing'])[-1]}")
    return _found(search, case, flips, printed)


def _bisect(search: _Search, case: FollowedTest) -> str:
    """Run git's bisect; returns what it printed."""
    path = search.commits.path
    terms = ("--term-old=broken", "--term-new=repaired") if search.before is State.BAD else ()
    worktree.tidy(path)
    begun = git(path, "bisect", "start", *terms, search.newer.id, search.older.id)
    if _flips(search.commits):  # the ends are neighbours
        return begun
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as said:
        step = (sys.executable, "-I", "-S", revision_step.__file__, str(theirs.fileno()))
        process = start_git(path, "bisect", "run", *step, output=said.fileno(), pass_fds=(theirs.fileno(),))
        theirs.close()
        try:
            while ours.recv(1):
                state = _state_of_head(search, case, f"{begun}\n{_so_far(said.fileno())}")
                code = {search.before: 0, search.after: 1}.get(state, _SKIP)
                worktree.tidy(path)
                ours.sendall(str(code).encode())
        finally:
            ours.close()  # a step that still waits has its answer
            process.wait()
        return re.sub(r"(?m)^running .*\n", "", f"{begun}\n{_so_far(said.fileno())}").strip()


def _state_of_head(search: _Search, case: FollowedTest, printed: str) -> State:
    commits = search.commits
    commit = worktree.about(commits.path, git(commits.path, "rev-parse", "HEAD"))
    text = f"{search.older.short}..{search.newer.short}"
    told = re.findall(r"(\d+) revisions? left to test after this \(roughly (\d+) step", printed)
    window = ProgressWindow(text, *map(int, told[-1])) if told else None  # a merge base comes before any count
    return case.try_(commits.candidate(commit), lambda _: window).state


def _so_far(file: int) -> str:
    """What was written to a file that is still being written to."""
    return os.pread(file, _PRINTED, 0).decode(errors="replace")


def _flips(commits: Commits) -> list[str]:
    """The commits at which the test may flip, by git's own notes; none as long as it goes on."""
    noted = git(commits.path, "bisect", "log")
    return re.findall(r"^# (?:possible )?first \w+ commit: \[(\w+)\]", noted, re.MULTILINE)


def _found(search: _Search, case: FollowedTest, flips: list[str], printed: str) -> CommitRange:
    commits, path = search.commits, search.commits.path
    found = [(commit, case.judge(commits.candidate(commit))) for commit in commits.tried(case.runner)]
    states = {commit: finding.state for commit, finding in found if finding is not None}
    flip = next(commit for commit in states if commit.id in flips and states[commit] is search.after)
    before = _before(search, flip, len(flips) > 1, [one for one in states if states[one] is search.before])
    ends = [_seen(commits, case, commit) for commit in (before, flip)]

    def unknown(*, inside: bool) -> tuple[Skipped, ...]:
        return skipped((str(commit), finding) for commit, finding in found if (commit.id in flips) is inside)

    repaired = search.before is State.BAD
    last_good, first_bad = reversed(ends) if repaired else ends
    culprit = Culprit(
        commits.name,
        last_good,
        first_bad,
        repaired,
        between=unknown(inside=True),
        skipped=unknown(inside=False),
        details=(
            ("files changed", worktree.diffstat(path, flip.id)),
            ("requirements changed", "\n".join(worktree.changed_requirements(path, flip.id))),
            ("what git bisect printed", printed),
        ),
    )
    tested = [commits.candidate(one) for one in (before if before in states else search.older, flip)]
    return CommitRange(culprit, (tested[1], tested[0]) if repaired else (tested[0], tested[1]))


def _before(search: _Search, flip: Commit, skipped_some: bool, tried: Iterable[Commit]) -> Commit:
    """The commit before the flip: a parent, a tested one if there is; else the nearest tested one before the skipped.

    A parent that was not tested is known by its descendants.
    """
    path = search.commits.path
    parents = git(path, "rev-list", "--parents", "--max-count=1", flip.id).split()[1:]
    if not skipped_some:
        return next((one for one in tried if one.id in parents), worktree.about(path, parents[0]))
    return min(tried, key=lambda one: int(git(path, "rev-list", "--count", f"{one.id}..{flip.id}")))


def _seen(commits: Commits, case: FollowedTest, commit: Commit) -> SeenFailure:
    return case.seen(commits.candidate(commit), commit.short, commit.day, commit.subject)
