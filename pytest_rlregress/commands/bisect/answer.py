"""The answer of a bisect: what was asked, where the test flips, every trial; told in sentences and in sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_rlregress.commands.trials.document import (
    MANY,
    Document,
    Section,
    excerpt,
    join_names,
    list_lines,
    list_trials,
    list_where,
    one_line,
    quote_command,
    tabulate,
    unbroken,
    whole,
)
from pytest_rlregress.commands.trials.trial import RunContext, TrialSummary, Untested
from pytest_rlregress.util.text import plural


@dataclass(frozen=True)
class DocumentedFailure:
    """The documented failure that the bad end shows."""

    id: str
    title: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class BisectRequest:
    """What was asked.

    Attributes:
        test: The test, as asked for: a scenario or a node id.
        good: The good end in words: ``transformers 4.57.1``, ``lock-monday.txt``, ``v1.0 (3f1c2aa)``.
        bad: The bad end in words.
        documented: The failure at the bad end, where it is a documented one.
    """

    test: str
    good: str
    bad: str
    documented: DocumentedFailure | None = None


@dataclass(frozen=True)
class Endpoint:
    """What the test did at one candidate: an end, the last good one or the first bad one.

    Attributes:
        label: Where: ``4.57.6``, ``lock-monday.txt``, ``3f1c2aa``.
        date: ISO day of its release or commit, None where unknown.
        verdict: The verdict, ``reproduced``, or ``passed``, ``failed``, …; "" where it was not tested.
        text: What came out, or "" where it passed.
        title: A commit's subject, or "".
        conflict: Why its environment could not be built, all that was said; else "".
    """

    label: str
    date: str | None = None
    verdict: str = ""
    text: str = ""
    title: str = ""
    conflict: str = ""


@dataclass(frozen=True)
class Culprit:
    """Where the verdict flips: two neighbours among what could be tested.

    Attributes:
        name: The package, the packages that can only be moved together (``torch, vllm``), or the checkout.
        last_good: The last good one, going from the good end to the bad end.
        first_bad: The first bad one.
        repaired: Whether the bad one is the older: the failure was repaired, not introduced.
        between: What lies between the two and could not be tested. Not empty: narrowed to a set, no more.
        moved: What differs between the two locks beside ``name``, as ``name before -> after``.
        from_base: What differs between the lock of ``first_bad`` and the one that was held fixed, in the same form.
        skipped: The other candidates that could not be tested.
        details: What else is known of it, each with a title: of a commit the files that it changed.
    """

    name: str
    last_good: Endpoint
    first_bad: Endpoint
    repaired: bool = False
    between: tuple[Untested, ...] = ()
    moved: tuple[str, ...] = ()
    from_base: tuple[str, ...] = ()
    skipped: tuple[Untested, ...] = ()
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ChangedSet:
    """The smallest set of upgrades, of those between two locks, that flips the test.

    Attributes:
        changed: Number of packages that differ.
        minimal: The changes, as ``name before -> after``, that were seen to flip the verdict with everything else as at
            the good end, but for what they need.
        moved_along: The changes that these need.
        proven: Whether it was seen good without any one of them.
        groups: The packages that can only be moved together, by their requirements: groups of two and more.
        undecided: Of the minimal set, the packages that what could not be tested keeps from being told apart: one of
            each such group flips the verdict. Not empty: narrowed to a set, no more.
    """

    changed: int
    minimal: tuple[str, ...]
    moved_along: tuple[str, ...] = ()
    proven: bool = True
    groups: tuple[tuple[str, ...], ...] = ()
    undecided: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class NotFound:
    """Why there is no answer.

    Attributes:
        kind: ``fails at both``, ``passes at both``, ``swapped``, ``flaky end``, ``untested end`` or
            ``not monotone``.
        first: What it is about in words: the good end; the end that is flaky or untested; the bad candidate that comes
            before a good one.
        second: The bad end; that good candidate; else "".
        reason: The counts of a flaky end, or why an end could not be tested.
        command: For ``swapped``: what asks the other way round.
        advice: Options that may let it be found, in sentences.
    """

    kind: str
    first: str
    second: str = ""
    reason: str = ""
    command: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a bisect found.

    Attributes:
        request: What was asked.
        culprits: Where the verdict flips; empty where ``not_found``.
        ends: The good end and the bad end as they were seen, the first two things tried.
        run_context: Where it was tried.
        tried: Every trial, in the order of the trying.
        seconds: Wall-clock seconds of this bisect, an interrupted one's earlier time included.
        command: What asks the same again.
        changed: For two locks.
        not_found: Why there is no culprit.
        also_flip: Other tests that flip at the same place.
        flip_elsewhere: Other tests that flip between the ends, but at another place.
    """

    request: BisectRequest
    ends: tuple[Endpoint, Endpoint]
    run_context: RunContext
    tried: tuple[TrialSummary, ...]
    seconds: float
    command: tuple[str, ...]
    culprits: tuple[Culprit, ...] = ()
    changed: ChangedSet | None = None
    not_found: NotFound | None = None
    also_flip: tuple[str, ...] = ()
    flip_elsewhere: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an answer that says nothing, or two things."""
        if bool(self.not_found) == bool(self.culprits or self.changed):
            raise ValueError("an answer has culprits or a changed set, or else says why it was not found")

    @property
    def exit_code(self) -> int:
        """0 found, 1 not reproduced or not monotone, 3 narrowed to a set that could not be tested."""
        if self.not_found:
            return 1
        undecided = self.changed is not None and self.changed.undecided
        return 3 if undecided or any(culprit.between for culprit in self.culprits) else 0


_FORMAT = 2
_WHY_NOT = {
    "fails at both": "The failure shows at both ends, {first} and {second}: no upgrade between them brought it.",
    "passes at both": "The failure shows at neither end, {first} nor {second}: name a bad end at which it does.",
    "swapped": "The ends are swapped: the failure shows at {first}, given as good, and not at {second}, given as bad. "
    "Exchange them{command}.",
    "flaky end": "An end has to give the same every time, and {first} does not: {reason}.",
    "untested end": "An end has to be tested before anything between can be, and {first} could not be: {reason}.",
    "not monotone": "It flips more than once: {first} is bad and {second}, nearer to the bad end, is good again"
    "{because}. Ask with ends between which it flips once.",
}


def tell(answer: Answer) -> Document:
    """Tell what a bisect found."""
    headline = (
        [_explain_not_found(answer, answer.not_found)]
        if answer.not_found
        else [*_describe_set(answer.changed), *map(_describe_flip, answer.culprits)]
    )
    return Document(answer.request.test, headline, [*_list_sections(answer)], answer, _FORMAT, answer.exit_code)


# -- the answer in sentences ------------------------------------------------------------------------------------------


def _explain_not_found(answer: Answer, found: NotFound) -> str:
    reason = unbroken(found.reason.removeprefix("flaky: ").rstrip(". \n"))
    if any(end.conflict and end.label == found.first for end in answer.ends):
        reason = "its environment cannot be built, for what is said below"
    return _WHY_NOT[found.kind].format(
        first=one_line(found.first),
        second=one_line(found.second),
        reason=reason,
        because=f" ({unbroken(found.reason)})" if found.reason else "",
        command=f": {one_line(quote_command(found.command))}" if found.command else "",
    )


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
    points = _list_endpoints(answer)
    yield Section("Where it flips" if answer.culprits else "The ends", _tabulate_points(points))
    if answer.not_found:
        yield from _show_points(points)
        if answer.not_found.advice:
            yield Section("What may help", list_lines(map(unbroken, answer.not_found.advice)))
    for culprit in answer.culprits:
        yield from _list_about(culprit)
    for title, tests in (
        ("Flips at the same place", answer.also_flip),
        ("Flips between the ends, elsewhere", answer.flip_elsewhere),
    ):
        if tests:
            yield Section(title, list_lines(map(one_line, tests)), folded=len(tests) > MANY)
    if changed := answer.changed:
        lines = [one_line(one) for one in changed.minimal]
        lines += [f"needed by these: {one_line(one)}" for one in changed.moved_along]
        lines += [f"can only be moved together: {join_names(group)}" for group in changed.groups]
        yield Section(f"What it takes, of {plural(changed.changed, 'changed package')}", list_lines(lines))
    yield Section("To reproduce", quote_command(answer.command), language="sh")
    if documented := answer.request.documented:
        facts = {"What": documented.title, "Cause": documented.cause, "Remedy": documented.remedy}
        lines = [f"{key}: {unbroken(text)}" for key, text in facts.items()]
        yield Section(f"Documented as {documented.id}", list_lines(lines))
    yield list_where("Where, and what was held fixed", answer.run_context)
    if answer.run_context.left_out:
        left_out = list_lines(map(one_line, answer.run_context.left_out))
        yield Section("Left out of the environments", left_out, folded=True)
    if not answer.not_found:
        yield from _show_points(points)
    yield list_trials(answer.tried, answer.seconds)


def _list_endpoints(answer: Answer) -> list[tuple[str, str, Endpoint]]:
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
    head = ("", "at", "date", "verdict", "")
    rows = [(role, at, one.date or "", one.verdict, one.title) for role, at, one in points]
    if any(one.date for _, _, one in points):
        return tabulate(rows, head)
    return tabulate([(role, at, *rest) for role, at, _, *rest in rows], ("", "at", "verdict", ""))


def _show_points(points: Sequence[tuple[str, str, Endpoint]]) -> Iterator[Section]:
    """Yield each outcome at the first of its places."""
    shown: dict[str, str] = {}
    for role, at, one in points:
        if one.conflict:
            yield Section(f"Why {at}, the {role}, could not be tried", whole(one.conflict))
        if one.text:
            text = f"the same as at {one_line(shown[one.text])}" if one.text in shown else excerpt(one.text)
            yield Section(f"What came out at {at}, the {role}", text, folded=True)
            shown.setdefault(one.text, at)


def _list_about(culprit: Culprit) -> Iterator[Section]:
    """Yield the notes on where it flips."""
    for title, skipped in (("between the two, not tested", culprit.between), ("not tested", culprit.skipped)):
        if skipped:
            lines = [f"{one_line(one.label)}: {unbroken(one.reason)}" for one in skipped]
            yield Section(f"{culprit.name}: {title}", list_lines(lines), folded=len(lines) > MANY)
    with_it, from_base = "moved from last good to first bad", "differs at first bad from what is held fixed"
    for title, moved in ((with_it, culprit.moved), (from_base, culprit.from_base)):
        if moved:
            yield Section(f"{culprit.name}: {title}", "\n".join(map(one_line, moved)), folded=len(moved) > MANY)
    for title, text in culprit.details:
        if text:
            yield Section(f"{culprit.name}: {title}", excerpt(text), folded=True)
