"""Bisect the commits of a checkout: those of the line that leads to the bad end, each tried as any other candidate."""

from __future__ import annotations

from dataclasses import replace

from pytest_rlregress.commands.bisect import build_answer, follow, worktree
from pytest_rlregress.commands.bisect.answer import Answer, Endpoint, NotFound
from pytest_rlregress.commands.bisect.checkout import Commits, open_commits
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer, OrderedCandidates, follow_test
from pytest_rlregress.commands.bisect.needs import check_nothing_lacks, find_needs
from pytest_rlregress.commands.bisect.worktree import BUILD_FILES
from pytest_rlregress.commands.environments import contents
from pytest_rlregress.commands.environments.contents import Needs
from pytest_rlregress.commands.environments.uv import Installer
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.trial import State
from pytest_rlregress.stack import locks
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
                among = list_candidates(commits, followed)
                culprit = follow.find_first_bad(among, followed)
            except NoAnswer as error:
                check_nothing_lacks(context, held, runner.trials.values())
                return build_answer.build_not_found(context, error.why, ends, runner, held)
            last, first = culprit.last_good, culprit.first_bad
            ends_now = f"{last.label}..{first.label}"
            return build_answer.build_found(
                context,
                followed,
                held,
                build_answer.build_command(context, "--revisions", ends_now, "--repo", str(options.repo)),
                culprits=[replace(culprit, details=list_details(commits, first.label))],
                edge=(among.find(last), among.find(first)),
                days=(commits.good.day, commits.bad.day),
            )


def _find_needs(context: TrialContext, name: str) -> Needs:
    """What the tests need; all of this environment where it is not known what the project itself needs."""
    return find_needs(context) if name in locks.installed().lines else Needs()


def list_candidates(commits: Commits, followed: FollowedTest) -> OrderedCandidates:
    """List the commits from the good end to the bad end, of a merge only the side merged into; both ends were tried.

    Where the ends are on two branches, the commit that both come from is tried first.

    Raises:
        NoAnswer: That one is bad.
    """
    good, bad = commits.good, commits.bad
    base = worktree.find_merge_base(commits.path, good, bad)
    repaired, apart = base == bad, base not in (good, bad)
    older, newer = (bad, good) if repaired else (base, bad)
    line = [older, *worktree.list_commits(commits.path, f"{older.id}..{newer.id}")]
    if apart:
        line.insert(0, good)
        if followed.try_(commits.candidate(base)).state is State.BAD:
            older_label, repaired_label = (commits.candidate(one).label for one in (base, good))
            reason = (
                f"{older_label}, which both ends come from, is bad too: the failure was repaired on the way to "
                f"{repaired_label}"
            )
            raise NoAnswer(NotFound("not monotone", older_label, repaired_label, reason))
    if repaired:
        line.reverse()
    return OrderedCandidates(
        commits.name,
        tuple(map(commits.candidate, line)),
        tuple(Endpoint(one.short, one.day, title=one.subject) for one in line),
        repaired,
    )


def list_details(commits: Commits, at: str) -> tuple[tuple[str, str], ...]:
    """List what else is known of the commit where the test flips."""
    path = commits.path
    merged = git(path, "rev-list", "--parents", "--max-count=1", at).count(" ") > 1
    return (
        ("files changed", worktree.show_changes(path, at, "--stat=100", "--stat-count=30").strip("\n")),
        (
            "requirements changed",
            worktree.show_changes(path, at, "--unified=0", "--", *BUILD_FILES, "requirements*.txt"),
        ),
        ("a merge, and how to go into it", f"--revisions {at}^1..{at}^2" if merged else ""),
    )
