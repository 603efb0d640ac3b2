"""The report as GitHub's Markdown, for a job's summary and the body of an issue.

Names of tests and what they say are others' texts. They stand in ``<code>``, where GitHub looks for no mentions and no
references, and all of their punctuation is written as character references, which never are Markdown or HTML.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from pytest_rlregress.report import sentences
from pytest_rlregress.report.judgement import headline, next_commands
from pytest_rlregress.report.judgement.comparison import RunComparison
from pytest_rlregress.report.judgement.facts import Change, Night, PlatformNight
from pytest_rlregress.report.judgement.kinds import Kind
from pytest_rlregress.report.sentences import ChangeSentences
from pytest_rlregress.util.text import code_block, plural, without_markup

_TESTS = 20  # of one story
_CHARACTERS = 60_000  # an issue takes 65536

Rates = Mapping[tuple[str, str], str]  # by platform and test


def markdown(found: Night | RunComparison) -> str:
    """Render a night, or a comparison."""
    return _night(found) if isinstance(found, Night) else _comparison(found)


def _night(night: Night) -> str:
    table = ["| hardware | tonight |", "| --- | --- |", *(_row(platform, night) for platform in night.platforms)]
    title = f"Night of {night.date}: {_plain(headline.of_night(night).text)}"
    return _page(title, table, night.changes, len(night.problems), sentences.rates(night.flaky))


def _row(platform: PlatformNight, night: Night) -> str:
    told = "<br>".join(map(_plain, (sentences.platform(platform), *sentences.news(platform))))
    return f"| {_plain(platform.name)} | {told} |"


def _comparison(found: RunComparison) -> str:
    runs = [("before", found.before), *(("after", run) for run in found.after)]
    table = ["| | run | record |", "| --- | --- | --- |"]
    table += [
        f"| {role} | {_plain(f'{run.platform}, {sentences.run(run)}')} | {_code(next_commands.near(run.path))} |"
        for role, run in runs
    ]
    differ = f"Differ: {_plain(sentences.compared(found))}"
    unlike = [line for text in sentences.unlike(found.after) for line in ("", _plain(text.strip()))]
    return _page(
        f"Compared: {_plain(headline.of_comparison(found.changes))}",
        [*table, "", differ, *unlike],
        found.changes,
        len(found.problems),
        {},
    )


def _page(title: str, head: Sequence[str], changes: Iterable[Change], problems: int, rates: Rates) -> str:
    text = "\n".join([f"## {title}", "", *head, ""])
    told = sentences.stories(changes)
    for index, story in enumerate(told):
        more = "\n".join(_story(story, rates))
        if len(text) + len(more) > _CHARACTERS:
            text += f"\nAnd {len(told) - index} more, which do not fit here.\n"
            break
        text += more
    return text + (f"\n{plural(problems, 'remark')} about the records: see the page.\n" if problems else "")


def _story(story: ChangeSentences, rates: Rates) -> list[str]:
    found = ["", f"### {story.kind.capitalize()} on {_plain(story.platform)}", "", _plain(story.happened) + ".", ""]
    for change in story.changes[:_TESTS]:
        note = f": {_code(sentences.note(change))}" if sentences.note(change) else ""
        rate = rates.get((change.platform, change.test), "") if change.kind is not Kind.REPAIRED else ""
        found.append(f"- {_code(change.test)} {_plain(sentences.arrow(change))}{note}" + (f" ({rate})" if rate else ""))
    found += [f"- and {len(story.changes) - _TESTS} more"] * (len(story.changes) > _TESTS)
    found += ["", f"Changed in between: {_plain(story.between)}."] if story.between else []
    if story.command:
        found += ["", f"{story.todo.capitalize()}:", "", code_block(shlex.join(story.command), "sh")]
    return [*found, ""]


def _code(text: str) -> str:
    return f"<code>{_plain(text)}</code>"


def _plain(text: str) -> str:
    """Escape a text for Markdown."""
    return without_markup(sentences.clean(text))
