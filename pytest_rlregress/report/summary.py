"""The report as lines for the terminal: one screen, the most urgent first."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from pytest_rlregress.report import sentences
from pytest_rlregress.report.judgement import headline, next_commands
from pytest_rlregress.report.judgement.comparison import RunComparison
from pytest_rlregress.report.judgement.facts import Change, Night, PlatformNight, Problem
from pytest_rlregress.report.judgement.kinds import Kind
from pytest_rlregress.report.sentences import ChangeSentences

_TESTS = 5  # of one story
_PROBLEMS = 5
_WIDTH = 120


def lines(found: Night | RunComparison) -> list[str]:
    """Render a night, or a comparison."""
    return _night(found) if isinstance(found, Night) else _comparison(found)


def _night(night: Night) -> list[str]:
    width = max((len(platform.name) for platform in night.platforms), default=0)
    return [
        f"night of {night.date} (times are UTC): {headline.of_night(night).text}",
        "",
        *(line for platform in night.platforms for line in _platform(platform, night, width)),
        *_stories(night.changes, sentences.rates(night.flaky)),
        *_problems(night.problems),
    ]


def _platform(platform: PlatformNight, night: Night, width: int) -> list[str]:
    more = [f"  {'':{width}}  {line}" for line in sentences.news(platform)]
    return [f"  {platform.name:{width}}  {sentences.platform(platform)}", *more]


def _comparison(found: RunComparison) -> list[str]:
    runs = [("before", found.before), *(("after", run) for run in found.after)]
    return [
        f"compared (times are UTC): {headline.of_comparison(found.changes)}",
        "",
        *(
            f"  {role.ljust(6)}  {run.platform}, {sentences.run(run)}: {next_commands.near(run.path)}"
            for role, run in runs
        ),
        f"  differ  {sentences.compared(found)}",
        *sentences.unlike(found.after),
        *_stories(found.changes, {}),
        *_problems(found.problems),
    ]


def _stories(changes: Iterable[Change], rates: Mapping[tuple[str, str], str]) -> list[str]:
    return [line for story in sentences.stories(changes) for line in ("", *_story(story, rates))]


def _story(story: ChangeSentences, rates: Mapping[tuple[str, str], str]) -> list[str]:
    found = [f"{story.kind.upper()} on {story.platform}: {story.happened}"]
    for change in story.changes[:_TESTS]:
        found.append(f"  {sentences.clean(change.test)}: {sentences.arrow(change)}")
        rate = rates.get((change.platform, change.test), "") if change.kind is not Kind.REPAIRED else ""
        found += [f"    {_short(line)}" for line in (sentences.note(change), rate) if line]
    found += [f"  and {len(story.changes) - _TESTS} more"] * (len(story.changes) > _TESTS)
    found += [f"  changed in between: {sentences.clean(story.between)}"] * bool(story.between)
    found += [f"  {story.todo}:", f"    {shlex.join(story.command)}"] if story.command else []
    return found


def _problems(problems: Sequence[Problem]) -> list[str]:
    told = [f"  {sentences.clean(f'{next_commands.near(one.path)}: {one.text}')}" for one in problems[:_PROBLEMS]]
    more = [f"  and {len(problems) - _PROBLEMS} more"] * (len(problems) > _PROBLEMS)
    return ["", "about the records:", *told, *more] if problems else []


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
