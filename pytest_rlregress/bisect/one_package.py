"""Bisect the releases of one package, with the rest of the stack held fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from pytest_rlregress.bisect import build_answer
from pytest_rlregress.bisect.answer import Answer, Culprit, NotFound
from pytest_rlregress.bisect.follow import FollowedTest, NoAnswer, follow_test, list_untested
from pytest_rlregress.bisect.needs import check_nothing_lacks, find_needs
from pytest_rlregress.environments import contents, releases
from pytest_rlregress.environments.contents import EnvironmentContents
from pytest_rlregress.environments.index_settings import IndexProblem
from pytest_rlregress.environments.releases import Release
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.trials import progress, search
from pytest_rlregress.trials.context import TrialContext, refuse_shadowed
from pytest_rlregress.trials.observations import State
from pytest_rlregress.trials.progress import ProgressWindow
from pytest_rlregress.trials.runner import Candidate, TrialResult
from pytest_rlregress.trials.search import NotMonotone
from pytest_rlregress.trials.summaries import Untested


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
        last, first = culprit.last_good.label, culprit.first_bad.label
        versions = [release.version for release in found.releases]
        return build_answer.build_found(
            context,
            followed,
            held,
            build_answer.build_command(context, package, "--good", last, "--bad", first),
            culprits=[culprit],
            edge=(found.candidates[versions.index(last)], found.candidates[versions.index(first)]),
            days=(found.releases[0].date, found.releases[-1].date),
        )


@dataclass(frozen=True)
class ReleaseCandidates:
    """Releases of a package, from the good end to the bad end.

    Attributes:
        package: Its name.
        releases: All that may be tried.
        candidates: A candidate for each of these.
        repaired: Whether the bad end is the older one.
    """

    package: str
    releases: tuple[Release, ...]
    candidates: tuple[Candidate, ...]
    repaired: bool


def find_candidates(
    context: TrialContext, package: str, good: str, bad: str, held: EnvironmentContents, known: Mapping[str, Lock]
) -> ReleaseCandidates:
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

    return ReleaseCandidates(
        package,
        tuple(found),
        tuple(candidate(one.version) for one in found),
        Version(found[0].version) > Version(found[-1].version),
    )


def find_first_bad(context: TrialContext, among: ReleaseCandidates, followed: FollowedTest) -> Culprit:
    """Try releases until the place is found where the test flips; both ends were tried.

    Raises:
        NoAnswer: A good release comes after a bad one.
    """
    while True:
        states = _states(among, followed)
        try:
            step = search.next_candidate(states)
        except NotMonotone as error:
            first, second = (among.candidates[at].label for at in (error.bad, error.good))
            raise NoAnswer(NotFound("not monotone", first, second)) from None
        if isinstance(step, search.Window):
            return _make_culprit(context, among, followed, step)
        followed.try_(among.candidates[step], lambda _: _window(among, followed))


def _classify_all(among: ReleaseCandidates, followed: FollowedTest) -> list[TrialResult | None]:
    return [followed.classify(candidate) for candidate in among.candidates]


def _states(among: ReleaseCandidates, followed: FollowedTest) -> list[State | None]:
    return [None if one is None else one.state for one in _classify_all(among, followed)]


def _window(among: ReleaseCandidates, followed: FollowedTest) -> ProgressWindow | None:
    states = _states(among, followed)
    try:
        low, high = search.find_window(states)
    except search.NotMonotone:
        return None
    versions = [release.version for release in among.releases[low : high + 1]]
    return ProgressWindow(progress.join_ends(versions), states[low:high].count(None), search.estimate_runs(states))


def _make_culprit(
    context: TrialContext, among: ReleaseCandidates, followed: FollowedTest, found: search.Window
) -> Culprit:
    last, first = (
        followed.describe_at(among.candidates[index], among.releases[index].version, among.releases[index].date)
        for index in (found.last_good, found.first_bad)
    )
    labelled = [
        (release.version, one) for release, one in zip(among.releases, _classify_all(among, followed), strict=True)
    ]
    inside = range(found.last_good + 1, found.first_bad)
    known = [among.releases[index].version for index in (found.last_good, *inside, found.first_bad)]
    left_out = releases.list_left_out(context.environments.find_release, among.package, known, context.options.pre)
    yanked, unusable = (
        [Untested(version, reason) for version, reason in left_out if (reason == "yanked") is one]
        for one in (True, False)
    )
    before, after = (set(_moved(among, followed, index)) for index in (found.last_good, found.first_bad))
    return Culprit(
        among.package,
        last,
        first,
        among.repaired,
        between=(*list_untested(labelled[index] for index in inside), *unusable),
        moved=_difference(before, after),
        from_base=tuple(sorted(after)),
        skipped=(
            *list_untested(one for at, one in enumerate(labelled) if at not in inside and one[1]),
            *yanked,
        ),
    )


def _moved(among: ReleaseCandidates, followed: FollowedTest, index: int) -> tuple[str, ...]:
    trial = followed.runner.find_trial(among.candidates[index])
    return trial.moved if trial is not None else ()


def _difference(before: set[str], after: set[str]) -> tuple[str, ...]:
    """What two locks differ in, of both of which is known what they differ in from a third: ``name old -> new``."""
    moves = [{line.split()[0]: line.partition(" -> ") for line in lines} for lines in (before, after)]
    names = sorted({line.split()[0] for line in before ^ after})
    ends = [[one[name][2] if name in one else _find_base_version(name, *moves) for one in moves] for name in names]
    return tuple(f"{name} {old} -> {new}" for name, (old, new) in zip(names, ends, strict=True))


def _find_base_version(name: str, *moves: dict[str, tuple[str, str, str]]) -> str:
    """The version of a package that only one of two locks has moved."""
    return next(one[name][0].partition(" ")[2] for one in moves if name in one)
