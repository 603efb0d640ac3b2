"""Which release of one package: from the good end to the bad end, with the rest of the stack held fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_rlregress.bisect import build_answer, search
from pytest_rlregress.bisect.answers import progress
from pytest_rlregress.bisect.answers.answer import Answer, Culprit, NotFound, Skipped
from pytest_rlregress.bisect.answers.progress import ProgressWindow
from pytest_rlregress.bisect.context import BisectContext
from pytest_rlregress.bisect.followed_test import FollowedTest, NoAnswer, follow, skipped
from pytest_rlregress.bisect.search import NotMonotone
from pytest_rlregress.bisect.trials.observations import State
from pytest_rlregress.bisect.trials.runner import Candidate, TrialResult
from pytest_rlregress.environments import contents, releases
from pytest_rlregress.environments.contents import EnvironmentContents
from pytest_rlregress.environments.releases import Release
from pytest_rlregress.stack.locks import Lock


def bisect(work: BisectContext) -> Answer:
    """Which release of a package, between two.

    Raises:
        NoQuestion: No package or test was named.
        IndexProblem: An end is not on the index, or that cannot be asked.
    """
    options, package = work.options, work.options.words[0]
    found = between(work, package, options.good, options.bad)
    held = contents.of_this_environment(package, work.needed, options.with_editable)
    installed = held.lock.version(package)
    given = {installed: held.lock} if installed is not None else {}
    tried = span(work, found, held, given)
    good, bad = tried.candidates[0], tried.candidates[-1]
    question = {"package": package, "good": good.label, "bad": bad.label, "held": held.lock.digest}
    with work.runner({**question, "pre": options.pre, "deps": not options.no_deps}) as runner:
        try:
            case = follow(good, bad, runner, work.progress)
            culprit = narrow(tried, case)
        except NoAnswer as error:
            return build_answer.not_found(work, error.why, (good, bad), runner, held.lock, held.left_out)
        last, first = culprit.last_good.label, culprit.first_bad.label
        return build_answer.found(
            work,
            case,
            held.lock,
            build_answer.command(work, package, "--good", last, "--bad", first),
            culprits=[culprit],
            edge=(tried.candidate(last), tried.candidate(first)),
            left_out=held.left_out,
            days=(found.releases[0].date, found.releases[-1].date),
        )


@dataclass(frozen=True)
class Between:
    """Releases of a package, from the good end to the bad end.

    Attributes:
        releases: All that may be tried.
        yanked: Those between the ends that were taken back, and why.
        repaired: Whether the bad end is the older one.
    """

    package: str
    releases: tuple[Release, ...]
    yanked: tuple[Skipped, ...]
    repaired: bool


@dataclass(frozen=True)
class Span:
    """The releases, each as a candidate."""

    of: Between
    candidates: tuple[Candidate, ...]

    def candidate(self, version: str) -> Candidate:
        """The candidate of a version."""
        return next(
            one for one, release in zip(self.candidates, self.of.releases, strict=True) if release.version == version
        )


def between(work: BisectContext, package: str, good: str, bad: str) -> Between:
    """What the index has from one version of a package to another.

    Raises:
        IndexProblem: An end is not there, or cannot be installed here; or the index cannot be asked.
    """
    released = releases.releases(package, work.settings, work.options.cache_dir / "index", work.options.no_network)
    try:
        found = releases.between(released, good, bad, work.options.pre)
        yanked = releases.yanked_between(released, good, bad)
    except releases.IndexProblem as error:
        raise releases.IndexProblem(f"{package}: {error}") from None
    work.progress.skipped(Skipped(f"{package} {one.version}", one.untestable) for one in found if one.untestable)
    return Between(
        package,
        tuple(found),
        tuple(Skipped(one.version, f"yanked: {one.yanked}") for one in yanked),
        released.index(found[0]) > released.index(found[-1]),
    )


def span(work: BisectContext, among: Between, held: EnvironmentContents, given: Mapping[str, Lock]) -> Span:
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
        return found or work.environments.resolve(held.lock, wanted, held.wishes, exact=work.options.no_deps)

    return Span(among, tuple(map(candidate, among.releases)))


def narrow(span: Span, case: FollowedTest) -> Culprit:
    """Try releases until the place is found where the test flips; both ends were tried.

    Raises:
        NoAnswer: A good release comes after a bad one.
    """
    while True:
        states = _states(span, case)
        try:
            step = search.first_bad(states)
        except NotMonotone as error:
            first, second = (span.candidates[at].label for at in (error.bad, error.good))
            raise NoAnswer(NotFound("not monotone", first, second)) from None
        if isinstance(step, search.Window):
            return _culprit(span, case, step)
        followers = [span.candidates[index] for index in search.followers(states, step.index)]
        case.try_(span.candidates[step.index], lambda _: _window(span, case), followers)


def _findings(span: Span, case: FollowedTest) -> list[TrialResult | None]:
    return [
        TrialResult(State.UNKNOWN, release.untestable) if release.untestable else case.judge(candidate)
        for release, candidate in zip(span.of.releases, span.candidates, strict=True)
    ]


def _states(span: Span, case: FollowedTest) -> list[State | None]:
    return [None if one is None else one.state for one in _findings(span, case)]


def _window(span: Span, case: FollowedTest) -> ProgressWindow | None:
    states = _states(span, case)
    try:
        low, high = search.window(states)
    except search.NotMonotone:
        return None
    versions = [release.version for release in span.of.releases[low : high + 1]]
    return ProgressWindow(progress.between(versions), states[low:high].count(None), search.runs_left(states))


def _culprit(span: Span, case: FollowedTest, found: search.Window) -> Culprit:
    last, first = (
        case.seen(span.candidates[index], span.of.releases[index].version, span.of.releases[index].date)
        for index in (found.last_good, found.first_bad)
    )
    labelled = [(release.version, one) for release, one in zip(span.of.releases, _findings(span, case), strict=True)]
    inside = range(found.last_good + 1, found.first_bad)
    before, after = (set(_moved(span, case, index)) for index in (found.last_good, found.first_bad))
    return Culprit(
        span.of.package,
        last,
        first,
        span.of.repaired,
        between=skipped(labelled[index] for index in inside),
        moved=_difference(before, after),
        from_base=tuple(sorted(after)),
        skipped=(*skipped(one for at, one in enumerate(labelled) if at not in inside and one[1]), *span.of.yanked),
    )


def _moved(span: Span, case: FollowedTest, index: int) -> tuple[str, ...]:
    trial = case.runner.known(span.candidates[index])
    return trial.moved if trial is not None else ()


def _difference(before: set[str], after: set[str]) -> tuple[str, ...]:
    """What two locks differ in, of both of which is known what they differ in from a third: ``name old -> new``."""
    moves = [{line.split()[0]: line.partition(" -> ") for line in lines} for lines in (before, after)]
    names = sorted({line.split()[0] for line in before ^ after})
    ends = [[one[name][2] if name in one else _held(name, *moves) for one in moves] for name in names]
    return tuple(f"{name} {old} -> {new}" for name, (old, new) in zip(names, ends, strict=True))


def _held(name: str, *moves: dict[str, tuple[str, str, str]]) -> str:
    """The version of a package that only one of two locks has moved."""
    return next(one[name][0].partition(" ")[2] for one in moves if name in one)
