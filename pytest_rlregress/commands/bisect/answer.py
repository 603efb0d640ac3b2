"""The answer of a bisect: where the test flips, what was seen there, every trial; told in sentences and in sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_rlregress.trials.document import (
    MANY,
    Document,
    Section,
    excerpt,
    join_names,
    list_lines,
    one_line,
    quote_command,
    redact,
    tabulate,
    unbroken,
)
from pytest_rlregress.trials.trial import RunContext, TrialSummary, list_trials, list_where
from pytest_rlregress.util.text import plural


@dataclass(frozen=True)
class Endpoint:
    """The test's outcome at one candidate: an end, the last good one or the first bad one."""

    label: str  # where: ``4.57.6``, ``the good lock``, ``3f1c2aa``
    date: str | None = None  # the day of its release or commit in ISO form, None where unknown
    verdict: str = ""  # ``reproduced``, ``passed``, ``failed``, …; "" where it was not tested
    text: str = ""  # what came out, "" where it passed
    title: str = ""  # a commit's subject
    cause: str = ""  # what it failed by at its root, as a run's answer names it; "" where no package raised it
    conflict: str = ""  # why its environment could not be built, all that was said


@dataclass(frozen=True)
class Untested:
    """A candidate that is neither good nor bad: yanked, no wheel, a resolver conflict, another failure, flaky."""

    label: str
    reason: str


@dataclass(frozen=True)
class Culprit:
    """Where the verdict flips: two neighbours among what could be tested, from the good end to the bad end."""

    name: str  # the package or checkout
    last_good: Endpoint
    first_bad: Endpoint
    repaired: bool = False  # the bad one is the older: the failure was repaired, not introduced
    between: tuple[Untested, ...] = ()  # not empty: narrowed to a set, no more
    moved: tuple[str, ...] = ()  # what differs between the two locks beside ``name``: ``name before -> after``
    skipped: tuple[Untested, ...] = ()  # the other candidates that could not be tested
    changes: tuple[str, ...] = ()  # what the release changes for a run, read from both wheels: a line each
    details: tuple[tuple[str, str], ...] = ()  # what else is known, by title: of a commit the files that it changed


@dataclass(frozen=True)
class ChangedSet:
    """The smallest set of upgrades, of those between two locks, that flips the test."""

    changed: int  # packages that differ
    minimal: tuple[str, ...]  # seen to flip the verdict with all else as at the good end, but for what they need
    moved_along: tuple[str, ...] = ()  # what they need
    proven: bool = True  # whether it was seen good without any one of them
    # Of the minimal set, the packages that cannot be told apart, as what is between could not be tested: one of each
    # such group flips the verdict. Not empty: narrowed to a set, no more.
    undecided: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class NotFound:
    """Why there is no answer."""

    kind: str  # a key of ``_WHY_NOT``
    first: str  # what it is about in words: the good end, the end that is flaky, the bad candidate before a good one
    second: str = ""  # the bad end, that good candidate
    reason: str = ""  # the counts of a flaky end, or why an end could not be tested
    command: tuple[str, ...] = ()  # for ``swapped``: what asks the other way round
    advice: str = ""  # options that may let it be found


@dataclass(frozen=True)
class Answer:
    """The answer of a bisect."""

    test: str  # as asked for, and which of those was followed
    documented: Mapping[str, str]  # the documented failure at the bad end: its id, title, cause and remedy
    ends: tuple[Endpoint, Endpoint]  # the good end and the bad end, the first two things tried
    run_context: RunContext
    tried: tuple[TrialSummary, ...]
    seconds: float  # an interrupted bisect's earlier time included
    command: tuple[str, ...]  # what shows it again
    culprits: tuple[Culprit, ...] = ()
    changed: ChangedSet | None = None  # for two locks
    not_found: NotFound | None = None  # why there is no culprit
    also_flip: tuple[str, ...] = ()  # other tests that are good at the good end and bad at the bad end

    @property
    def exit_code(self) -> int:
        """0 found, 1 not reproduced or not monotone, 3 narrowed to a set that could not be tested."""
        if self.not_found:
            return 1
        undecided = self.changed is not None and self.changed.undecided
        return 3 if undecided or any(culprit.between for culprit in self.culprits) else 0


_FORMAT = 3
_WHY_NOT = {
    "fails at both": "The failure shows at both ends, {first} and {second}: no upgrade between them brought it.",
    "passes at both": "The failure shows at neither end, {first} nor {second}: name a bad end at which it does.",
    "swapped": "The ends are swapped: the failure shows at {first}, given as good, and not at {second}, given as bad. "
    "Exchange them{command}.",
    "flaky end": "An end has to give the same every time, and {first} does not: {reason}.",
    "untested end": "An end has to be tested before anything between can be, and {first} could not be: {reason}.",
    "not monotone": "It flips more than once: {first} is bad and {second}, nearer to the bad end, is good again. "
    "Ask with ends between which it flips once.",
}


def tell(answer: Answer) -> Document:
    """Tell what a bisect found."""
    headline = [_explain_not_found(answer, answer.not_found)] if answer.not_found else []
    headline += [*_describe_set(answer.changed), *map(_describe_flip, answer.culprits)]
    causes = dict.fromkeys(one.first_bad.cause for one in answer.culprits if one.first_bad.cause)
    headline += [f"It fails by: {one_line(cause)}" for cause in causes]
    return Document(answer.test, headline, [*_list_sections(answer)], answer, _FORMAT, answer.exit_code)


# -- the answer in sentences ------------------------------------------------------------------------------------------


def _explain_not_found(answer: Answer, found: NotFound) -> str:
    reason = unbroken(found.reason.removeprefix("flaky: ").rstrip(". \n"))
    if any(end.conflict and end.label == found.first for end in answer.ends):
        reason = "its environment cannot be built, for what is said below"
    command = f": {one_line(quote_command(found.command))}" if found.command else ""
    first, second = one_line(found.first), one_line(found.second)
    return _WHY_NOT[found.kind].format(first=first, second=second, reason=reason, command=command)


def _describe_set(changed: ChangedSet | None) -> Iterator[str]:
    if changed is None:
        return
    enough = "1 is enough" if len(changed.minimal) == 1 else f"{len(changed.minimal)} together are enough"
    along = f"{len(changed.moved_along)} that must move along, and " if changed.moved_along else ""
    seen = f"seen failing with {along}the rest as at the good end"
    more = "" if changed.proven else "; it was not seen good without each of them"
    yield f"Of {plural(changed.changed, 'changed package')} {enough}: {join_names(changed.minimal)} ({seen}{more})."
    for group in changed.undecided:
        yield f"Not told apart, as what lies between them could not be tested: {join_names(group)}."


def _describe_flip(culprit: Culprit) -> str:
    older, newer, word, last = culprit.last_good, culprit.first_bad, "Broke", "good"
    if culprit.repaired:
        older, newer, word, last = newer, older, "Repaired", "bad"
    old, new = (f"{one_line(one.label)}{f' ({unbroken(one.date)})' if one.date else ''}" for one in (older, newer))
    where = f"{word} in {one_line(culprit.name)}"
    if culprit.between:
        untested = plural(len(culprit.between), "candidate")
        return f"{where} after {old}, in {new} at the latest; {untested} between could not be tested."
    return f"{where} {new}; last {last}: {old}."


# -- all else ---------------------------------------------------------------------------------------------------------


def _list_sections(answer: Answer) -> Iterator[Section]:
    """Yield all but the headline, in the order of how likely it is wanted."""
    points = _list_points(answer)
    yield Section("Where it flips" if answer.culprits else "The ends", _tabulate_points(points))
    if answer.not_found:
        yield from _show_points(points)
        if answer.not_found.advice:
            yield Section("What may help", list_lines([unbroken(answer.not_found.advice)]))
    for culprit in answer.culprits:
        yield from _list_about(culprit)
    if tests := answer.also_flip:
        yield Section("Also flips between the ends", list_lines(map(one_line, tests)), folded=len(tests) > MANY)
    if changed := answer.changed:
        lines = [one_line(one) for one in changed.minimal]
        lines += [f"needed by these: {one_line(one)}" for one in changed.moved_along]
        yield Section(f"What it takes, of {plural(changed.changed, 'changed package')}", list_lines(lines))
    yield Section("To reproduce", quote_command(answer.command), language="sh")
    if documented := answer.documented:
        facts = {"What": documented["title"], "Cause": documented["cause"], "Remedy": documented["remedy"]}
        lines = [f"{key}: {unbroken(text)}" for key, text in facts.items()]
        yield Section(f"Documented as {documented['id']}", list_lines(lines))
    yield list_where("Where, and what was held fixed", answer.run_context)
    if answer.run_context.left_out:
        left_out = list_lines(map(one_line, answer.run_context.left_out))
        yield Section("Left out of the environments", left_out, folded=True)
    if not answer.not_found:
        yield from _show_points(points)
    yield list_trials(answer.tried, answer.seconds)


def _list_points(answer: Answer) -> list[tuple[str, str, Endpoint]]:
    """Return the places worth a line of their own: what each is, its name, and what was seen there."""
    found = [
        (role, f"{culprit.name} {one.label}", one)
        for culprit in answer.culprits
        for role, one in (("last good", culprit.last_good), ("first bad", culprit.first_bad))
    ]
    named = {at for _, at, _ in found}
    good, bad = (
        [] if one.label in named else [(role, one.label, one)]
        for role, one in zip(("good end", "bad end"), answer.ends, strict=True)
    )
    return [*good, *found, *bad]


def _tabulate_points(points: Sequence[tuple[str, str, Endpoint]]) -> str:
    """Tabulate the places; without the column of the dates where none is known."""
    rows = [("", "at", "date", "verdict", "")]
    rows += [(role, at, one.date or "", one.verdict, one.title) for role, at, one in points]
    return tabulate(rows if any(one.date for _, _, one in points) else [(*row[:2], *row[3:]) for row in rows])


def _show_points(points: Sequence[tuple[str, str, Endpoint]]) -> Iterator[Section]:
    """Yield each outcome at the first of its places."""
    shown: dict[str, str] = {}
    for role, at, one in points:
        if one.conflict:
            lines = list_lines(redact(one.conflict).strip("\n").split("\n"))
            yield Section(f"Why {at}, the {role}, could not be tried", lines)
        if one.text:
            text = f"the same as at {one_line(shown[one.text])}" if one.text in shown else excerpt(one.text)
            yield Section(f"What came out at {at}, the {role}", text, folded=True)
            shown.setdefault(one.text, at)


def _list_about(culprit: Culprit) -> Iterator[Section]:
    """Yield the notes on where it flips."""
    if culprit.changes:
        title = f"{culprit.name}: what the release changes for a run"
        yield Section(title, list_lines(map(unbroken, culprit.changes)), folded=len(culprit.changes) > MANY)
    for title, skipped in (("between the two, not tested", culprit.between), ("not tested", culprit.skipped)):
        if skipped:
            lines = [f"{one_line(one.label)}: {unbroken(one.reason)}" for one in skipped]
            yield Section(f"{culprit.name}: {title}", list_lines(lines), folded=len(lines) > MANY)
    if moved := culprit.moved:
        title = f"{culprit.name}: moved from last good to first bad"
        yield Section(title, "\n".join(map(one_line, moved)), folded=len(moved) > MANY)
    for title, text in culprit.details:
        if text:
            yield Section(f"{culprit.name}: {title}", excerpt(text), folded=True)
