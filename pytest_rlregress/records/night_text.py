"""Tell a night, or a comparison, as Markdown that a terminal can show as it is.

It goes to the terminal, to a job's summary and into issues. Names of tests and what they say are others' texts: they
stand in code spans, where GitHub makes no mention, link or markup of them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_rlregress.failures.verdicts import rank
from pytest_rlregress.records.answer import count_side
from pytest_rlregress.records.changes import TOLD, Change, Flaky, Kind
from pytest_rlregress.records.corridors import BASELINE
from pytest_rlregress.records.history import RecordedRun
from pytest_rlregress.records.night import Night, PlatformNight, RunComparison
from pytest_rlregress.records.stories import (
    NOTHING,
    Story,
    describe_difference,
    find_common_cause,
    group_alike,
    moment,
    shorten_path,
    show_words,
    tell_stories,
)
from pytest_rlregress.util.text import clean, code_span, plural, quoted, quoted_around_code

_KNOWN = 3
_TESTS = 10  # of one story
_PROBLEMS = 5
_NAME = 300  # characters of a test
_CHARACTERS = 60_000  # an issue takes 65536


def tell(found: Night | RunComparison) -> str:
    """Render a night, or a comparison, the most urgent first."""
    if isinstance(found, Night):
        title = f"Night of {found.date} (times are UTC): {found.headline}"
        head = [line for platform in found.platforms for line in _tell_platform(platform)]
        rates = {(one.platform, one.test): one for one in found.flaky}
    else:
        title = f"Compared (times are UTC): {found.headline}"
        head, rates = _tell_runs(found), {}
    text = "\n".join([f"## {title}", "", *head, ""])
    stories = tell_stories(found.changes)
    left = 0
    for story in stories:
        more = "\n".join(["", *_tell_story(story, rates), ""])
        if len(text) + len(more) > _CHARACTERS:
            left += 1
        else:
            text += more
    if left:
        text += f"\nAnd {left} more, which do not fit here.\n"
    if found.problems:
        told = [
            f"- {code_span(clean(shorten_path(one.path)))}: {quoted(one.text)}" for one in found.problems[:_PROBLEMS]
        ]
        told += _count_rest(found.problems, _PROBLEMS)
        text += "\n".join(["", "### About the records", "", *told, ""])
    return text


def _tell_runs(found: RunComparison) -> list[str]:
    """List the runs of a comparison, and what differs between them."""
    first = found.after[0]
    head = [
        f"- {role}: {quoted(run.platform)}, {_tell_run(run)}: {code_span(clean(shorten_path(run.path)))}"
        for role, run in (("before", found.before), *(("after", run) for run in found.after))
    ]
    head.append(f"- differ: {_differ(found.before, first, found.changes)}")
    others = [run for run in found.after[1:] if run.conditions != first.conditions]
    if others:
        head.append(f"- the runs after it differ too: {_differ(first, others[0])}")
    return head


def _tell_run(run: RecordedRun) -> str:
    """Say when a run began, and what is unusual about it."""
    asked = clean(" ".join(run.call.narrowing))
    return f"{moment(run)}{_odd(run)}{f', only {code_span(asked)}' if asked else ''}"


def _odd(run: RecordedRun) -> str:
    state = "" if run.extra.state == "complete" else f" {run.extra.state}"
    return f"{state} with files not committed" if run.dirty else state


def _count_rest(listed: Sequence[object], most: int) -> list[str]:
    return [f"- and {len(listed) - most} more"] if len(listed) > most else []


def _tell_platform(night: PlatformNight) -> Iterator[str]:
    """Tell of a platform's night: how many tests of each word, the answer of its last run, what is news."""
    name = quoted(night.name)
    if not night.runs:
        last = f"the last run was {moment(night.last)}" if night.last else "there is no earlier run either"
        yield f"- {name}: NO RUN: {last}"
        return
    words = Counter(point.word for point in night.results.values())
    counted = ", ".join(f"{words[word]} {word}" for word in sorted(words, key=lambda word: (-rank(word), word)))
    runs = ", ".join(f"{moment(one).rpartition(' ')[2]}{_odd(one)}" for one in night.runs)
    asked = {clean(" ".join(one.call.narrowing)) for one in night.runs}
    only = f"; only {' and '.join(map(code_span, sorted(asked)))}" if "" not in asked else ""
    tests = f"{plural(len(night.results), 'test')}: {counted or 'none'}"
    yield f"- {name}: {tests} ({plural(len(night.runs), 'run')}: {runs}{only})"
    run = night.runs[-1]
    yield from (f"  - {quoted_around_code(line)}" for line in run.extra.answer)
    if night.last and _list_installed(night.last) != _list_installed(run):
        yield f"  - since the run before: {_differ(night.last, run, night.changes)}"
    if night.baseline:
        counted = plural(night.baseline.numbers, "number")
        yield f"  - baseline setup: {counted} of training steps, night {night.baseline.night} of {BASELINE}"
    known = [change for change in night.changes if change.fails_as_before]
    if known:
        more = f", and {len(known) - _KNOWN} more" if len(known) > _KNOWN else ""
        told = ", ".join(f"{code_span(clean(change.test, _NAME))} ({show_words(change)})" for change in known[:_KNOWN])
        yield f"  - known, failing as before: {told}{more}"


def _list_installed(run: RecordedRun) -> tuple[object, ...]:
    return run.lock.digest, run.extra.hardware.driver, run.extra.stack.python


def _tell_story(story: Story, rates: Mapping[tuple[str, str], Flaky]) -> list[str]:
    lines = [f"### {story.kind.capitalize()} on {quoted(story.platform)}: {story.happened}", ""]
    for change in story.changes[:_TESTS]:
        flaky = None if change.kind is Kind.REPAIRED else rates.get((change.platform, change.test))
        rate = f" (flaky: {flaky.bad} of {plural(flaky.runs, 'run')} bad, nothing changed)" if flaky else ""
        lines.append(f"- {_tell_test(change)}{rate}")
    lines += _count_rest(story.changes, _TESTS)
    if story.between:
        lines += ["", f"Changed in between: {_code(story.between)}"]
    if story.command:
        lines += ["", f"{story.todo}:", "", f"    {story.command}"]
    return lines


def _tell_test(change: Change) -> str:
    """Describe one test: its name, ``held -> regressed``, and why."""
    return f"{code_span(clean(change.test, _NAME))} {show_words(change)}{_tell_why(change)}"


def _tell_why(change: Change) -> str:
    silent = (change.kind is Kind.REPAIRED and not change.number) or change.now is None
    note = "" if silent else clean(change.latest.note)
    return f": {code_span(note)}" if note else ""


def _differ(before: RecordedRun, after: RecordedRun, changes: Iterable[Change] = ()) -> str:
    return _code(describe_difference(before, after, changes))


def _code(differs: str) -> str:
    return differs if differs == NOTHING else code_span(differs)


def tell_since_last(found: RunComparison) -> list[str]:
    """Tell in a few lines what changed since the last record."""
    lines = [f"Since the last record ({moment(found.before)}): {found.headline}."]
    lines.append(f"Changed in between: {_differ(found.before, found.after[0], found.changes)}")
    told = sorted((one for one in found.changes if one.kind in TOLD), key=lambda one: TOLD.index(one.kind))
    groups = group_alike(told)
    for changes in groups[:_TESTS]:
        first = changes[0]
        if cause := find_common_cause(changes):
            lines.append(f"- {first.kind}: {code_span(clean(cause))}: {plural(len(changes), 'test')}")
        elif first.latest.failure and len(changes) > 1:
            counted = f"{quoted(first.latest.failure)}: {count_side(len(changes), first.latest.side)}"
            lines.append(f"- {first.kind}: {counted} {show_words(first)}{_tell_why(first)}")
        else:
            lines.append(f"- {first.kind}: {_tell_test(first)}")
    if len(groups) > _TESTS:
        paths = [shorten_path(run.path) for run in (found.before, *found.after)]
        lines.append(f"- and {len(groups) - _TESTS} more: {shlex.join(['rlregress', 'report', '--compare', *paths])}")
    return lines
