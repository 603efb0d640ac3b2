"""Bisect the releases of one package, with the rest of the stack held fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from packaging.version import Version

from pytest_rlregress.commands.bisect import build_answer, follow
from pytest_rlregress.commands.bisect.answer import Answer, Culprit, Endpoint
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer, OrderedCandidates, follow_test
from pytest_rlregress.commands.bisect.needs import check_nothing_lacks, find_needs
from pytest_rlregress.commands.environments import contents, releases
from pytest_rlregress.commands.environments.contents import EnvironmentContents
from pytest_rlregress.commands.environments.index_settings import IndexProblem
from pytest_rlregress.commands.trials.context import TrialContext, refuse_shadowed
from pytest_rlregress.commands.trials.runner import Candidate
from pytest_rlregress.commands.trials.summaries import Untested
from pytest_rlregress.stack.locks import Lock


def bisect(context: TrialContext) -> Answer:
    """Find which release of a package, between two, made the test fail.

    Raises:
        IndexProblem: An end is not on the index, or that cannot be asked.
        LacksPackages: The tests missed some at an end that are installed here.
    """
    options, package = context.options, context.options.words[0]
    refuse_shadowed([package])
    held = contents.select_contents(package, find_needs(context), options.with_editable)
    installed = held.lock.version(package)
    known = {installed: held.lock} if installed is not None else {}
    found = find_candidates(context, package, options.good, options.bad, held, known)
    good, bad = found.candidates[0], found.candidates[-1]
    key = {"package": package, "good": good.label, "bad": bad.label, "held": held.lock.digest}
    with context.runner({**key, "pre": options.pre, "deps": not options.no_deps}) as runner:
        try:
            followed = follow_test(good, bad, runner, context.progress)
            culprit = find_first_bad(context, found, followed)
        except NoAnswer as error:
            check_nothing_lacks(context, held, runner.trials.values())
            return build_answer.build_not_found(context, error.why, (good, bad), runner, held)
        last, first = culprit.last_good, culprit.first_bad
        return build_answer.build_found(
            context,
            followed,
            held,
            build_answer.build_command(context, package, "--good", last.label, "--bad", first.label),
            culprits=[culprit],
            edge=(found.find(last), found.find(first)),
            days=(found.points[0].date, found.points[-1].date),
        )


def find_candidates(
    context: TrialContext, package: str, good: str, bad: str, held: EnvironmentContents, known: Mapping[str, Lock]
) -> OrderedCandidates:
    """Find the releases that the index has from one version of a package to another.

    Args:
        context: Where they are tried.
        package: Its name.
        good: The version of the good end.
        bad: The version of the bad end.
        held: What is held fixed.
        known: The locks of some versions, which need not be resolved.

    Raises:
        IndexProblem: An end is not there, or cannot be installed here; or the index cannot be asked.
    """
    options = context.options
    try:
        found = releases.list_candidates(context.environments.find_release, package, good, bad, options.pre)
    except IndexProblem as error:
        raise IndexProblem(f"{package}: {error}") from None

    def resolve(version: str) -> Lock:
        lock = known.get(version)
        wanted = {package: version}
        return lock or context.environments.resolve(held.lock, wanted, held.requires, exact=options.no_deps)

    def candidate(version: str) -> Candidate:
        return Candidate(f"{package} {version}", lambda: resolve(version), held.lock, frozenset({package}))

    return OrderedCandidates(
        package,
        tuple(candidate(one.version) for one in found),
        tuple(Endpoint(one.version, one.date) for one in found),
        Version(found[0].version) > Version(found[-1].version),
    )


def find_first_bad(context: TrialContext, among: OrderedCandidates, followed: FollowedTest) -> Culprit:
    """Find where the test flips, and which releases there could not be candidates; both ends were tried.

    Raises:
        NoAnswer: A good release comes after a bad one.
    """
    culprit = follow.find_first_bad(among, followed)
    labels = [point.label for point in among.points]
    flip = slice(labels.index(culprit.last_good.label), labels.index(culprit.first_bad.label) + 1)
    left_out = releases.list_left_out(context.environments.find_release, among.name, labels[flip], context.options.pre)
    unusable = (Untested(*one) for one in left_out if one[1] != "yanked")
    yanked = (Untested(*one) for one in left_out if one[1] == "yanked")
    return replace(culprit, between=(*culprit.between, *unusable), skipped=(*culprit.skipped, *yanked))
