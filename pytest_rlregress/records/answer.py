"""Answer a run: what failed, what is absent, what was not tried, in Markdown that a terminal can show as it is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pytest_rlregress.failures.causes import BadTest, SharedCause, find_shared
from pytest_rlregress.failures.verdicts import EXPECTED, Rank, Verdict, rank
from pytest_rlregress.records.record_types import Record, RecordedTest, State, Summary, find_area
from pytest_rlregress.records.wants import read_want
from pytest_rlregress.util.text import clean, code_span, markdown_table, plural, quoted, wrapped

_ORDER = ["broken", *Verdict]
_NAMED = 8  # in a sentence
_LISTED = 30  # in a list
_NOTES = 3  # of one finding


@dataclass(frozen=True)
class RunFinding:
    """Tests that came out otherwise than expected: those of one cause, of a failure's side, or a single other test.

    Attributes:
        word: A verdict, ``broken`` for a component, or pytest's word.
        name: The cause that tests of several failures or sides share, the failure, the component, or the test.
        side: ``reproduces`` or ``guards``; "" where the test is a side of no failure.
        of: How many tests that side has.
        is_cause: Whether ``name`` is a cause.
    """

    word: str
    name: str
    side: str
    tests: tuple[RecordedTest, ...]
    of: int
    is_cause: bool = False

    @property
    def fails(self) -> bool:
        """Whether it fails the run."""
        return self.tests[0].status == "failed"

    @property
    def failure(self) -> str:
        """The failure, "" for none."""
        return self.name if self.side else ""

    @property
    def untried(self) -> str:
        """Which releases here the failure was not tried with; "" if it was."""
        return self.tests[0].extra.untried

    @property
    def counted(self) -> str:
        """How many tests these are: ``2 of 38 guards``, ``85 tests of 14 failures``."""
        if self.is_cause:
            failures = len({test.extra.failure for test in self.tests})
            return f"{plural(len(self.tests), 'test')} of {plural(failures, 'failure')}"
        return f"{len(self.tests)} of {count_side(self.of, self.side)}"

    @property
    def notes(self) -> list[str]:
        """Why, each text once."""
        texts = dict.fromkeys(clean(test.extra.note or test.message) for test in self.tests)
        return [text for text in texts if text][:_NOTES]


def count_side(number: int, side: str) -> str:
    """Count tests of one side of a failure: ``3 guards``."""
    return plural(number, {"reproduces": "reproduction", "guards": "guard"}.get(side, "test"))


def find(tests: Collection[RecordedTest]) -> list[RunFinding]:
    """Find what failed, and what is absent or reproduced against expectation; the gravest first.

    Tests of several failures, or of both sides of one, that failed by the same cause are one finding.
    """
    sides = Counter((test.extra.failure, test.extra.side) for test in tests)
    causes = [_of_cause(one) for one in find_shared(map(_describe_bad, filter(_is_bad_side, tests)))]
    told = {id(test) for one in causes for test in one.tests}
    groups: dict[tuple[str, str, str], list[RecordedTest]] = {}
    for test in tests:
        if id(test) in told:
            continue
        extra = test.extra
        noted = extra.note and extra.verdict in (Verdict.ABSENT, Verdict.REPRODUCED)
        if test.status == "failed" or (noted and not extra.expected):
            word = "broken" if extra.component else test.word
            groups.setdefault((word, extra.failure or extra.component or test.name, extra.side), []).append(test)
    found = [
        RunFinding(word, name, side, tuple(some), sides[name, side] if side else 1)
        for (word, name, side), some in groups.items()
    ]
    found = [*causes, *found]
    return sorted(found, key=lambda one: (not one.fails, not one.is_cause, _place_by_gravity(one.word)))


def _is_bad_side(test: RecordedTest) -> bool:
    return test.status == "failed" and bool(test.extra.failure)


def _describe_bad(test: RecordedTest) -> BadTest[RecordedTest]:
    return BadTest(test, test.extra.failure, test.extra.side, test.extra.cause)


def _of_cause(shared: SharedCause[RecordedTest]) -> RunFinding:
    tests = tuple(one.test for one in shared.tests)
    word = shared.word or min((test.word for test in tests), key=_place_by_gravity)
    return RunFinding(word, shared.cause, "", tests, len(tests), is_cause=True)


def _place_by_gravity(word: str) -> int:
    return _ORDER.index(word) if word in _ORDER else 99


def summarise(
    tests: Collection[RecordedTest], profile: str | None, *, chosen: bool = False, problem: str = ""
) -> list[str]:
    """Answer in up to three lines: what failed, by failure; what is absent; what was not tried, by what is missing.

    Args:
        tests: Of a run.
        profile: The hardware profile of the run.
        chosen: Whether only some tests were asked for: then an absent failure may happen in others.
        problem: Why the run fails whatever the tests say.
    """
    unfinished = sum(test.raw_status in ("pending", "interrupted") for test in tests)
    failed = _failed(find(tests))
    parts = [problem] if problem else []
    parts += [f"{unfinished:,} of {plural(len(tests), 'test')} have no result"] if unfinished else []
    parts = [*failed, *parts, *_passed(tests)] or ["no test could run"]
    if failed or problem:
        word = "FAILED"
    elif unfinished:
        word = "ENDED EARLY"
    else:
        word = "OK" if any(test.status == "passed" for test in tests) else "NOTHING TRIED"
    first = f"{word} on {profile or 'unknown hardware'}: {'; '.join(parts)}."
    return [first, *filter(None, (_expected(tests), _absent(tests, chosen), _not_tried(tests)))]


def _failed(findings: Iterable[RunFinding]) -> list[str]:
    """Name what failed, by failure; then the components, the number of other tests, and what to type."""
    by_name: dict[tuple[str, str], list[str]] = {}
    broken: list[str] = []
    others: list[str] = []
    causes: list[str] = []
    for one in findings:
        if not one.fails:
            continue
        if one.is_cause:
            causes.append(f"{one.counted} {one.word} by one cause, {code_span(clean(one.name))}")
        elif one.side:
            by_name.setdefault((one.untried, one.name), []).append(f"{one.counted} {one.word}")
        elif one.word == "broken":
            broken.append(one.name)
        else:
            others.append(one.name)
    failures = sorted(by_name.items(), key=lambda one: one[0][0])  # what was not tried with these releases comes last
    parts, said = [], ""
    for (untried, name), words in failures[:_NAMED]:
        before = f"{untried}: " if untried != said else ""
        parts.append(f"{before}{name}: {', '.join(words)}")
        said = untried
    if len(failures) > _NAMED:
        parts.append(f"{len(failures) - _NAMED} more failures")
    parts = [*causes, *parts]
    parts += [f"broken here: {', '.join(broken)}"] if broken else []
    if others:
        named = f": {code_span(clean(others[0]))}" if len(others) == 1 else ""
        parts.append(f"{plural(len(others), 'other test')} failed{named}")
    return parts


def _passed(tests: Iterable[RecordedTest]) -> list[str]:
    """Count the failures that happen here, and what held."""
    words: dict[str, set[str]] = {}
    held = passed = known = 0
    for test in tests:
        if test.extra.side == "reproduces":
            words.setdefault(test.extra.failure, set()).add(test.word)
        held += test.word == Verdict.HELD
        passed += test.word == "passed" and not test.extra.component
        known += test.word == EXPECTED
    told = [some for some in words.values() if some & {Verdict.REPRODUCED, Verdict.ABSENT}]
    happen = sum(Verdict.REPRODUCED in some for some in told)
    verb = "happens" if happen == 1 else "happen"
    parts = [f"{happen} of {plural(len(told), 'failure')} {verb} here"] if told else []
    parts += [f"{plural(held, 'guard')} held"] if held else []
    parts += [f"{plural(known, 'test')} bad as expected"] if known else []
    return parts + ([f"{plural(passed, 'other test') if parts else plural(passed, 'test')} passed"] if passed else [])


def _expected(tests: Iterable[RecordedTest]) -> str:
    """Count the tests whose bad verdict the file of expectations has, by the entry's issue."""
    by_entry: dict[str, Counter[str]] = {}
    for test in tests:
        extra = test.extra
        if test.word == EXPECTED:
            about = f"{extra.failure or extra.component or test.name} {'broken' if extra.component else extra.verdict}"
            by_entry.setdefault(extra.expected, Counter())[about.strip()] += 1
    if not by_entry:
        return ""
    told = [f"{_list_counted(counts)}: {clean(entry)}" for entry, counts in by_entry.items()]
    total = sum(counts.total() for counts in by_entry.values())
    return f"Known and looked after, {plural(total, 'test')}: {'; '.join(told)}."


def _list_counted(counts: Counter[str]) -> str:
    return ", ".join(f"{about} ({count})" for about, count in counts.items())


def _absent(tests: Iterable[RecordedTest], chosen: bool) -> str:
    """Name the failures that are absent in all of their tests, and those that are in some."""
    counts: dict[str, Counter[str]] = {}
    for test in tests:
        if test.extra.side == "reproduces":
            counts.setdefault(test.extra.failure, Counter())[test.word] += 1
    absent = {failure: found for failure, found in counts.items() if found[Verdict.ABSENT]}
    gone = [failure for failure, found in absent.items() if found[Verdict.ABSENT] == found.total()]
    partly = [f"{failure} ({_share(found)})" for failure, found in absent.items() if failure not in gone]
    parts = []
    if gone and chosen:
        parts.append(f"in the chosen tests: {', '.join(gone)}")
    elif gone:
        parts.append(f"here, so no workaround is needed: {', '.join(gone)}")
    parts += [f"in some tests only: {', '.join(partly)}"] if partly else []
    return f"Absent {'; '.join(parts)}." if parts else ""


def _share(counts: Counter[str]) -> str:
    """Write how many of a failure's tests found it absent."""
    absent, said = counts[Verdict.ABSENT], sum(counts[word] for word in counts if rank(word) is not Rank.NOTHING)
    return f"{absent} of {counts.total()}{', the rest not tried' if absent == said else ''}"


def _not_tried(tests: Iterable[RecordedTest]) -> str:
    """Count the tests that were skipped by what is missing."""
    skipped = [test for test in tests if test.raw_status == "skipped" and not test.extra.component]
    counts = Counter(read_want(test).name for test in skipped)
    if not counts:
        return ""
    named = [f"{quoted(missing)} ({count})" for missing, count in counts.most_common(_NAMED)]
    named += [f"{len(counts) - _NAMED} more"] if len(counts) > _NAMED else []
    return f"Not tried, {plural(counts.total(), 'test')}, for want of: {', '.join(named)}."


def with_tests(head: Record, tests: Iterable[RecordedTest], state: State, stop: int, problem: str = "") -> Record:
    """Return a run's record: what it was begun with, its tests as far as they are known at ``stop``, and its answer.

    ``problem`` is why the run fails whatever the tests say.
    """
    results, tests = head.results, list(tests)
    extra = results.extra
    answer = summarise(tests, extra.hardware.profile, chosen=bool(extra.run.narrowing), problem=problem)
    counts: Counter[str] = Counter(test.status for test in tests)
    return replace(
        head,
        timestamp=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stop / 1000)),
        results=replace(
            results,
            summary=Summary(tests=len(tests), **counts, start=results.summary.start, stop=stop),
            tests=tests,
            extra=replace(extra, state=state, answer=answer),
        ),
    )


def details(tests: Collection[RecordedTest]) -> dict[str, list[str]]:
    """Tell in sections what isn't as expected, and count the rest by area: title to lines."""
    findings = find(tests)
    listed = [line for one in findings[:_LISTED] for line in wrapped(_bullet(one), rest="  ")]
    listed += [f"- and {len(findings) - _LISTED} more"] if len(findings) > _LISTED else []
    told = {id(test) for one in findings for test in one.tests}
    rest = [test for test in tests if id(test) not in told and not test.extra.component]
    return {"not as expected": listed, "as expected" if listed else "by area": _by_area(rest)}


def _bullet(one: RunFinding) -> str:
    if one.is_cause:
        failures = ", ".join(dict.fromkeys(test.extra.failure for test in one.tests))
        return f"- {code_span(clean(one.name))}: {one.counted} {one.word}: {failures}"
    notes = f": {'; '.join(map(code_span, one.notes))}" if one.notes else ""
    if not one.side:
        return f"- {code_span(clean(one.name))}: {one.word}{notes}"
    subject = one.tests[0].extra.subject
    under = f" under {quoted(subject)}" if subject and one.side == "guards" else ""
    return f"- {one.name}: {one.counted} {one.word}{under}{notes}"


def _by_area(tests: Iterable[RecordedTest]) -> list[str]:
    """Count tests by area and by word: a failure's area is the folder that its own is in."""
    areas: dict[str, Counter[str]] = {}
    for test in tests:
        areas.setdefault(find_area(test.name, test.extra.failure), Counter())[test.word] += 1
    if not areas:
        return []
    seen = {word for counts in areas.values() for word in counts}
    words = [word for word in (*Verdict, "passed") if word in seen] + sorted(seen - {*Verdict, "passed"})
    rows = [[quoted(area), *(str(counts[word] or "") for word in words)] for area, counts in sorted(areas.items())]
    return markdown_table(["area", *words], rows)


def as_markdown(answer: Sequence[str], sections: dict[str, list[str]]) -> str:
    """Lay out an answer and its sections as Markdown."""
    head = "".join(f"{line}\n\n" for line in answer[1:])
    parts = [f"### {title.capitalize()}\n\n" + "\n".join(lines) + "\n\n" for title, lines in sections.items() if lines]
    return f"## {answer[0]}\n\n{head}{''.join(parts)}"
