"""Tell a night, or a comparison, as Markdown that a terminal can show as it is.

It goes to the terminal, to a job's summary and into issues. Names of tests and what they say are others' texts: they
stand in code spans, where GitHub makes no mention, link or markup of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_rlregress.commands.report.judgement import headline, next_commands
from pytest_rlregress.commands.report.judgement.comparison import RunComparison
from pytest_rlregress.commands.report.judgement.facts import (
    Change,
    Flaky,
    Night,
    PlatformNight,
    Point,
    Problem,
    RecordedRun,
)
from pytest_rlregress.commands.report.judgement.kinds import TOLD, Kind
from pytest_rlregress.commands.report.judgement.stories import (
    NOTHING,
    Story,
    arrow,
    between,
    count_tests,
    moment,
    stories,
    told_ends,
)
from pytest_rlregress.util.text import clean, code_span, plural, quoted

_KNOWN = 3
_TESTS = 10  # of one story
_PROBLEMS = 5
_CHARACTERS = 60_000  # an issue takes 65536

Rates = Mapping[tuple[str, str], str]  # by platform and test


def tell(found: Night | RunComparison) -> str:
    """Render a night, or a comparison, the most urgent first."""
    return _night(found) if isinstance(found, Night) else _comparison(found)


def _night(night: Night) -> str:
    title = f"Night of {night.date} (times are UTC): {headline.of_night(night).text}"
    head = [line for platform in night.platforms for line in _platform(platform)]
    return _page(title, head, night.changes, night.problems, _rates(night.flaky))


def _comparison(found: RunComparison) -> str:
    runs = [("before", found.before), *(("after", run) for run in found.after)]
    head = [
        f"- {role}: {quoted(run.platform)}, {tell_run(run)}: {code_span(clean(next_commands.near(run.path)))}"
        for role, run in runs
    ]
    head.append(f"- differ: {_differ(found.before, found.after[0], told_ends(found.changes))}")
    others = [run for run in found.after[1:] if run.conditions != found.after[0].conditions]
    if others:
        head.append(f"- the runs after it differ too: {_differ(found.after[0], others[0])}")
    title = f"Compared (times are UTC): {headline.of_comparison(found.changes)}"
    return _page(title, head, found.changes, found.problems, {})


def since_last(found: RunComparison) -> list[str]:
    """Tell in a few lines what changed since the last record."""
    lines = [f"Since the last record ({moment(found.before)}): {headline.of_comparison(found.changes)}."]
    lines.append(f"Changed in between: {_differ(found.before, found.after[0], told_ends(found.changes))}")
    told: dict[tuple[str, ...], list[Change]] = {}
    for one in sorted((one for one in found.changes if one.kind in TOLD), key=lambda one: TOLD.index(one.kind)):
        failure, side = one.latest.failure or one.test, one.latest.side or ""
        told.setdefault((one.kind, failure, side, arrow(one)), []).append(one)
    lines += [_of_failure(changes) for changes in [*told.values()][:_TESTS]]
    if len(told) > _TESTS:
        paths = [next_commands.near(run.path) for run in (found.before, *found.after)]
        lines.append(f"- and {len(told) - _TESTS} more: {shlex.join(['rlregress', 'report', '--compare', *paths])}")
    return lines


def _of_failure(changes: Sequence[Change]) -> str:
    """Describe in a line how tests of one side of a failure changed, or a test of none."""
    first = changes[0]
    if not first.latest.failure or len(changes) == 1:
        return f"- {first.kind}: {_test(first)}"
    return f"- {first.kind}: {quoted(first.latest.failure)}: {count_tests(changes)} {arrow(first)}{_why(first)}"


def _page(title: str, head: Sequence[str], changes: Iterable[Change], problems: Sequence[Problem], rates: Rates) -> str:
    text = "\n".join([f"## {title}", "", *head, ""])
    told = stories(changes)
    for index, story in enumerate(told):
        more = "\n".join(["", *_tell_story(story, rates), ""])
        if len(text) + len(more) > _CHARACTERS:
            text += f"\nAnd {len(told) - index} more, which do not fit here.\n"
            break
        text += more
    return text + "\n".join(_problems(problems))


def _problems(problems: Sequence[Problem]) -> list[str]:
    told = [f"- {code_span(clean(next_commands.near(one.path)))}: {quoted(one.text)}" for one in problems[:_PROBLEMS]]
    if len(problems) > _PROBLEMS:
        told.append(f"- and {len(problems) - _PROBLEMS} more")
    return ["", "### About the records", "", *told, ""] if told else []


def _platform(night: PlatformNight) -> Iterator[str]:
    """Tell of a platform's night: how many tests of each word, the answer of its last run, what is news."""
    name = quoted(night.name)
    if not night.runs:
        last = f"the last run was {moment(night.last)}" if night.last else "there is no earlier run either"
        yield f"- {name}: NO RUN: {last}"
        return
    counted = ", ".join(f"{count} {word}" for word, count in night.tally)
    runs = ", ".join(f"{moment(one).rpartition(' ')[2]}{_odd(one)}" for one in night.runs)
    asked = {clean(" ".join(one.only)) for one in night.runs}
    only = f"; only {' and '.join(map(code_span, sorted(asked)))}" if "" not in asked else ""
    tests = f"{plural(len(night.results), 'test')}: {counted or 'none'}"
    yield f"- {name}: {tests} ({plural(len(night.runs), 'run')}: {runs}{only})"
    yield from (f"  - {line}" for line in night.runs[-1].extra.answer)
    if night.last and _stack(night.last) != _stack(night.runs[-1]):
        yield f"  - since the run before: {_differ(night.last, night.runs[-1], told_ends(night.changes))}"
    known = [change for change in night.changes if change.fails_as_before]
    if known:
        more = f", and {len(known) - _KNOWN} more" if len(known) > _KNOWN else ""
        told = ", ".join(f"{code_span(clean(change.test))} ({arrow(change)})" for change in known[:_KNOWN])
        yield f"  - known, failing as before: {told}{more}"


def _stack(run: RecordedRun) -> tuple[object, ...]:
    return run.lock.digest, run.driver, run.extra.stack.python


def tell_run(run: RecordedRun) -> str:
    """Say when a run began, and what is unusual about it."""
    asked = clean(" ".join(run.only))
    return f"{moment(run)}{_odd(run)}{f', only {code_span(asked)}' if asked else ''}"


def _odd(run: RecordedRun) -> str:
    state = "" if run.state == "complete" else f" {run.state}"
    return f"{state} with files not committed" if run.dirty else state


def _tell_story(story: Story, rates: Rates) -> list[str]:
    lines = [f"### {story.kind.capitalize()} on {quoted(story.platform)}: {story.happened}", ""]
    for change in story.changes[:_TESTS]:
        rate = "" if change.kind is Kind.REPAIRED else rates.get((change.platform, change.test), "")
        lines.append(f"- {_test(change)}{f' ({rate})' if rate else ''}")
    if len(story.changes) > _TESTS:
        lines.append(f"- and {len(story.changes) - _TESTS} more")
    if story.between:
        lines += ["", f"Changed in between: {_code(story.between)}"]
    if story.command:
        lines += ["", f"{story.todo}:", "", f"    {story.command}"]
    return lines


def _test(change: Change) -> str:
    """Describe one test: its name, ``held -> regressed``, and why."""
    return f"{code_span(clean(change.test))} {arrow(change)}{_why(change)}"


def _why(change: Change) -> str:
    silent = change.kind is Kind.REPAIRED or change.now is None
    note = "" if silent else clean(change.latest.note)
    return f": {code_span(note)}" if note else ""


def _differ(before: RecordedRun, after: RecordedRun, about: Iterable[tuple[Point | None, Point]] = ()) -> str:
    """Describe as Markdown what differs between two runs: ``between`` has the arguments."""
    return _code(between(before, after, about))


def _code(differs: str) -> str:
    return differs if differs == NOTHING else code_span(differs)


def _rates(found: Iterable[Flaky]) -> dict[tuple[str, str], str]:
    """Say how often tests were flaky, by platform and test."""
    return {
        (one.platform, one.test): f"flaky: {one.bad} of {plural(one.runs, 'run')} bad, nothing changed" for one in found
    }
