"""Bisect the commits of a checkout: git's own bisect chooses them, and each is tried as any other candidate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_rlregress.bisect import build_answer
from pytest_rlregress.bisect.answer import Answer, Culprit, Endpoint, NotFound
from pytest_rlregress.bisect.checkout import worktree
from pytest_rlregress.bisect.checkout.commits import Commits, open_commits
from pytest_rlregress.bisect.checkout.worktree import Commit, WorktreeError
from pytest_rlregress.bisect.follow import FollowedTest, NoAnswer, follow_test, list_untested
from pytest_rlregress.bisect.needs import check_nothing_lacks, find_needs
from pytest_rlregress.environments import contents
from pytest_rlregress.environments.contents import Needs
from pytest_rlregress.environments.uv import Installer
from pytest_rlregress.stack import locks
from pytest_rlregress.trials.context import TrialContext
from pytest_rlregress.trials.observations import State
from pytest_rlregress.trials.progress import ProgressWindow
from pytest_rlregress.trials.runner import Candidate
from pytest_rlregress.trials.summaries import Untested
from pytest_rlregress.util.git import git


def bisect(context: TrialContext) -> Answer:
    """Find which commit of a checkout, between two revisions, made the test fail.

    Raises:
        GitError: No checkout, an unknown revision, …
        LacksPackages: The tests missed some at an end that are installed here.
    """
    options = context.options
    with open_commits(
        options.repo,
        options.revisions,
        request=context.request,
        held=lambda name: contents.select_contents(name, _find_needs(context, name), options.with_editable),
        environments=context.environments,
        installer=Installer(context.settings, options.no_network, context.progress.say),
        folder=options.cache_dir / "worktrees",
    ) as commits:
        ends = good, bad = commits.candidate(commits.good), commits.candidate(commits.bad)
        held = commits.held
        key = {"checkout": str(commits.top), "good": good.label, "bad": bad.label, "held": held.lock.digest}
        with context.runner(key, commits, commits.request) as runner, commits.working_folder():
            try:
                followed = follow_test(good, bad, runner, context.progress)
                found = find_first_bad(commits, followed)
            except NoAnswer as error:
                check_nothing_lacks(context, held, runner.trials.values())
                return build_answer.build_not_found(context, error.why, ends, runner, held)
            last, first = found.culprit.last_good.label, found.culprit.first_bad.label
            return build_answer.build_found(
                context,
                followed,
                held,
                build_answer.build_command(context, "--revisions", f"{last}..{first}", "--repo", str(options.repo)),
                culprits=[found.culprit],
                edge=found.tested,
                days=(commits.good.day, commits.bad.day),
            )


def _find_needs(context: TrialContext, name: str) -> Needs:
    """What the tests need; all of this environment where it is not known what the project itself needs."""
    return find_needs(context) if name in locks.installed().lines else Needs()


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


def find_first_bad(commits: Commits, followed: FollowedTest) -> CommitRange:
    """Try the commits that git's bisect chooses until the flip is found; both ends were tried.

    Raises:
        NoAnswer: The good end is no ancestor of the bad one, and what both come from is bad.
        GitError: git cannot go on.
    """
    good, bad = commits.good, commits.bad
    if worktree.is_ancestor(commits.path, bad.id, good.id):
        search = _Search(commits, bad, good, State.BAD, State.GOOD)
    else:
        search = _Search(commits, good, bad, State.GOOD, State.BAD)
    printed = _bisect(search, followed)
    flips = _find_flips(commits)
    merge_base = re.search(r"merge base ([0-9a-f]+) is bad", printed)
    if merge_base:
        older, repaired = (
            commits.candidate(one).label for one in (worktree.read_commit(commits.path, merge_base[1]), good)
        )
        reason = f"{older}, which both ends come from, is bad too: the failure was repaired on the way to {repaired}"
        raise NoAnswer(NotFound("not monotone", older, repaired, reason))
    if not flips:
        raise WorktreeError(f"git bisect found nothing: {(printed.splitlines() or ['it printed nothing'])[-1]}")
    return _make_range(search, followed, flips, printed)


def _bisect(search: _Search, followed: FollowedTest) -> str:
    """Try the commits that git's bisect checks out, until it has found the flip; returns what it printed."""
    commits, path = search.commits, search.commits.path
    old, new = ("broken", "repaired") if search.before is State.BAD else ("good", "bad")
    terms = {search.before: old, search.after: new}
    worktree.clean(path)
    printed = [git(path, "bisect", "start", f"--term-old={old}", f"--term-new={new}", search.newer.id, search.older.id)]
    ended = False
    while not (ended or _find_flips(commits)):
        state = _try_head(search, followed, _window(search, printed[-1]))
        worktree.clean(path)
        more, ended = worktree.mark_commit(path, terms.get(state, "skip"))
        printed.append(more)
    return "\n".join(printed)


def _try_head(search: _Search, followed: FollowedTest, window: ProgressWindow | None) -> State:
    commits = search.commits
    commit = worktree.read_commit(commits.path, git(commits.path, "rev-parse", "HEAD"))
    return followed.try_(commits.candidate(commit), lambda _: window).state


def _window(search: _Search, printed: str) -> ProgressWindow | None:
    """What git says is left; None while it asks for a merge base, which comes before any count."""
    found = re.search(r"(\d+) revisions? left to test after this \(roughly (\d+) step", printed)
    return found and ProgressWindow(f"{search.older.short}..{search.newer.short}", int(found[1]), int(found[2]))


def _find_flips(commits: Commits) -> list[str]:
    """Find the commits at which the test may flip in git's own log; none as long as it goes on."""
    noted = git(commits.path, "bisect", "log")
    return re.findall(r"^# (?:possible )?first \w+ commit: \[(\w+)\]", noted, re.MULTILINE)


def _make_range(search: _Search, followed: FollowedTest, flips: list[str], printed: str) -> CommitRange:
    commits, path = search.commits, search.commits.path
    found = [(commit, followed.classify(commits.candidate(commit))) for commit in commits.list_tried(followed.runner)]
    states = {commit: result.state for commit, result in found if result is not None}
    flip = next(commit for commit in states if commit.id in flips and states[commit] is search.after)
    before = _find_commit_before(search, flip, len(flips) > 1, [one for one in states if states[one] is search.before])
    ends = [_describe_commit(commits, followed, commit) for commit in (before, flip)]

    def unknown(*, inside: bool) -> tuple[Untested, ...]:
        return list_untested((str(commit), result) for commit, result in found if (commit.id in flips) is inside)

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
            ("files changed", worktree.list_changed_files(path, flip.id)),
            ("requirements changed", "\n".join(worktree.list_changed_requirements(path, flip.id))),
            ("what git bisect printed", printed),
        ),
    )
    tested = [commits.candidate(one) for one in (before if before in states else search.older, flip)]
    return CommitRange(culprit, (tested[1], tested[0]) if repaired else (tested[0], tested[1]))


def _find_commit_before(search: _Search, flip: Commit, skipped_some: bool, tried: Iterable[Commit]) -> Commit:
    """Find the commit before the flip: a parent, a tested one if there is; else the nearest tested one.

    A parent that was not tested is known by its descendants.
    """
    path = search.commits.path
    parents = git(path, "rev-list", "--parents", "--max-count=1", flip.id).split()[1:]
    if not skipped_some:
        return next((one for one in tried if one.id in parents), worktree.read_commit(path, parents[0]))
    return min(tried, key=lambda one: int(git(path, "rev-list", "--count", f"{one.id}..{flip.id}")))


def _describe_commit(commits: Commits, followed: FollowedTest, commit: Commit) -> Endpoint:
    return followed.describe_at(commits.candidate(commit), commit.short, commit.day, commit.subject)
