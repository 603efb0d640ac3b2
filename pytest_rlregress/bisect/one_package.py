"""Which release of one package: from the good end to the bad end, with the rest of the stack held fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_rlregress.bisect import build_answer, search
from pytest_rlregress.bisect.answers import progress
from pytest_rlregress.bisect.answers.answer import Answer, Culprit, NotFound, Untested
from pytest_rlregress.bisect.answers.progress import ProgressWindow
from pytest_rlregress.bisect.context import BisectContext
from pytest_rlregress.bisect.followed_test import FollowedTest, NoAnswer, follow_test, list_untested
from pytest_rlregress.bisect.search import NotMonotone
from pytest_rlregress.bisect.trials.observations import State
from pytest_rlregress.bisect.trials.runner import Candidate, TrialResult
from pytest_rlregress.environments import contents, releases
from pytest_rlregress.environments.contents import EnvironmentContents
from pytest_rlregress.environments.releases import Release
from pytest_rlregress.stack.locks import Lock


def bisect(context: BisectContext) -> Answer:
    """Which release of a package, between two.

    Raises:
        NoQuestion: No package or test was named.
        IndexProblem: An end is not on the index, or that cannot be asked.
    """
    options, package = context.options, context.options.words[0]
    found = find_releases(context, package, options.good, options.bad)
    held = contents.select_contents(package, context.needed, options.with_editable)
    installed = held.lock.version(package)
    given = {installed: held.lock} if installed is not None else {}
    tried = make_candidates(context, found, held, given)
    good, bad = tried.candidates[0], tried.candidates[-1]
    question = {"package": package, "good": good.label, "bad": bad.label, "held": held.lock.digest}
    with context.runner({**question, "pre": options.pre, "deps": not options.no_deps}) as runner:
        try:
            followed = follow_test(good, bad, runner, context.progress)
            culprit = find_first_bad(tried, followed)
        except NoAnswer as error:
            return build_answer.build_not_found(context, error.why, (good, bad), runner, held.lock, held.left_out)
        last, first = culprit.last_good.label, culprit.first_bad.label
        return build_answer.build_found(
            context,
            followed,
            held.lock,
            build_answer.build_command(context, package, "--good", last, "--bad", first),
            culprits=[culprit],
            edge=(tried.candidate(last), tried.candidate(first)),
            left_out=held.left_out,
            days=(found.releases[0].date, found.releases[-1].date),
        )


@dataclass(frozen=True)
class ReleaseRange:
    """Releases of a package, from the good end to the bad end.

    Attributes:
        releases: All that may be tried.
        yanked: Those between the ends that were taken back, and why.
        repaired: Whether the bad end is the older one.
    """

    package: str
    releases: tuple[Release, ...]
    yanked: tuple[Untested, ...]
    repaired: bool


@dataclass(frozen=True)
class ReleaseCandidates:
    """The releases, each as a candidate."""

    of: ReleaseRange
    candidates: tuple[Candidate, ...]

    def candidate(self, version: str) -> Candidate:
        """The candidate of a version."""
        return next(
            one for one, release in zip(self.candidates, self.of.releases, strict=True) if release.version == version
        )


def find_releases(context: BisectContext, package: str, good: str, bad: str) -> ReleaseRange:
    """What the index has from one version of a package to another.

    Raises:
        IndexProblem: An end is not there, or cannot be installed here; or the index cannot be asked.
    """
    released = releases.list_releases(
        package, context.settings, context.options.cache_dir / "index", context.options.no_network
    )
    try:
        found = releases.select_candidates(released, good, bad, context.options.pre)
        yanked = releases.find_yanked(released, good, bad)
    except releases.IndexProblem as error:
        raise releases.IndexProblem(f"{package}: {error}") from None
    context.progress.report_untested(
        Untested(f"{package} {one.version}", one.untestable) for one in found if one.untestable
    )
    return ReleaseRange(
        package,
        tuple(found),
        tuple(Untested(one.version, f"yanked: {one.yanked}") for one in yanked),
        released.index(found[0]) > released.index(found[-1]),
    )


def make_candidates(
    context: BisectContext, among: ReleaseRange, held: EnvironmentContents, given: Mapping[str, Lock]
) -> ReleaseCandidates:
    """The candidates.

    Args:
        work: Where they are tried.
        among: The releases.
        held: What is held fixed.
        given: The locks of some versions, that need not be resolved.
    """
    package = among.package

    def candidate(release: Release) -> Candidate:
        return Candidate(f"{package} {release.version}", lambda: lock(release.version), held.lock, frozenset({package}))

    def lock(version: str) -> Lock:
        wanted = {package: version}
        found = given.get(version)
        return found or context.environments.resolve(held.lock, wanted, held.requires, exact=context.options.no_deps)

    return ReleaseCandidates(among, tuple(map(candidate, among.releases)))


def find_first_bad(span: ReleaseCandidates, followed: FollowedTest) -> Culprit:
    """Try releases until the place is found where the test flips; both ends were tried.

    Raises:
        NoAnswer: A good release comes after a bad one.
    """
    while True:
        states = _states(span, followed)
        try:
            step = search.next_candidate(states)
        except NotMonotone as error:
            first, second = (span.candidates[at].label for at in (error.bad, error.good))
            raise NoAnswer(NotFound("not monotone", first, second)) from None
        if isinstance(step, search.Window):
            return _make_culprit(span, followed, step)
        followers = [span.candidates[index] for index in search.likely_next(states, step.index)]
        followed.try_(span.candidates[step.index], lambda _: _window(span, followed), followers)


def _classify_all(span: ReleaseCandidates, followed: FollowedTest) -> list[TrialResult | None]:
    return [
        TrialResult(State.UNKNOWN, release.untestable) if release.untestable else followed.classify(candidate)
        for release, candidate in zip(span.of.releases, span.candidates, strict=True)
    ]


def _states(span: ReleaseCandidates, followed: FollowedTest) -> list[State | None]:
    return [None if one is None else one.state for one in _classify_all(span, followed)]


def _window(span: ReleaseCandidates, followed: FollowedTest) -> ProgressWindow | None:
    states = _states(span, followed)
    try:
        low, high = search.find_window(states)
    except search.NotMonotone:
        return None
    versions = [release.version for release in span.of.releases[low : high + 1]]
    return ProgressWindow(progress.join_ends(versions), states[low:high].count(None), search.estimate_runs(states))


def _make_culprit(span: ReleaseCandidates, followed: FollowedTest, found: search.Window) -> Culprit:
    last, first = (
        followed.describe_at(span.candidates[index], span.of.releases[index].version, span.of.releases[index].date)
        for index in (found.last_good, found.first_bad)
    )
    labelled = [
        (release.version, one) for release, one in zip(span.of.releases, _classify_all(span, followed), strict=True)
    ]
    inside = range(found.last_good + 1, found.first_bad)
    before, after = (set(_moved(span, followed, index)) for index in (found.last_good, found.first_bad))
    return Culprit(
        span.of.package,
        last,
        first,
        span.of.repaired,
        between=list_untested(labelled[index] for index in inside),
        moved=_difference(before, after),
        from_base=tuple(sorted(after)),
        skipped=(
            *list_untested(one for at, one in enumerate(labelled) if at not in inside and one[1]),
            *span.of.yanked,
        ),
    )


def _moved(span: ReleaseCandidates, followed: FollowedTest, index: int) -> tuple[str, ...]:
    trial = followed.runner.find_trial(span.candidates[index])
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
