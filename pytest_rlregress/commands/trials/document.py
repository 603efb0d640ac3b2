"""Tell an answer: as text for a terminal, as Markdown for an issue, and as JSON.

A section's body is laid out once: a terminal shows it as it is, Markdown as a block of code, so that nothing in it is
markup. Nothing of it is shown before ``redact``: no credentials of an index, no home folder, no control characters.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from pytest_rlregress.commands.environments.index_settings import IndexProblem
from pytest_rlregress.commands.environments.uv import NoSpace, NoUv
from pytest_rlregress.commands.trials.progress import Progress
from pytest_rlregress.commands.trials.summaries import RunContext, TrialSummary
from pytest_rlregress.commands.trials.text import redact
from pytest_rlregress.commands.trials.trial import RequestError
from pytest_rlregress.records.reader import RecordError
from pytest_rlregress.stack.locks import LockError
from pytest_rlregress.util.git import GitError
from pytest_rlregress.util.text import code_block, code_span, plural
from pytest_rlregress.util.units import format_duration

#: Lines that need not be folded.
MANY = 12
_FIRST, _LAST, _LONG = 8, 18, 200  # lines of a text, and characters of a line: an issue may have 65536 in all
_WIDTH = 100


class Section(NamedTuple):
    """A part of an answer under its title; ``language`` is that of a body that can be typed."""

    title: str
    body: str
    folded: bool = False
    language: str = ""


@dataclass(frozen=True)
class Document:
    """An answer as it is told.

    Attributes:
        title: What was asked.
        headline: What was found, in sentences.
        sections: All else, in the order of how likely it is wanted.
        facts: What is told, as a dataclass: the fields of the JSON.
        format: The form of the JSON: raised when a key changes its meaning or goes.
        exit_code: What the command ends with.
    """

    title: str
    headline: Sequence[str]
    sections: Sequence[Section]
    facts: Any
    format: int
    exit_code: int


def to_text(document: Document) -> str:
    """Lay out an answer to be read in a terminal; no end of line at its end."""
    parts = [list_lines(document.headline)]
    parts += [f"{one_line(one.title)}\n{textwrap.indent(one.body, '  ')}" for one in document.sections]
    return "\n\n".join(parts)


def to_markdown(document: Document) -> str:
    """Lay out an answer ready to be pasted into an issue on GitHub."""
    parts = [f"## {code_span(one_line(document.title))}", *(f"**{code_span(line)}**" for line in document.headline)]
    for one in document.sections:
        begin = f"<details{'' if one.folded else ' open'}><summary><code>{html.escape(one_line(one.title))}</code>"
        parts.append(f"{begin}</summary>\n\n{code_block(one.body, one.language)}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def to_json(document: Document) -> dict[str, Any]:
    """Turn an answer into what JSON can hold: its facts by their names, and format, exit_code, summary."""
    head = {"format": document.format, "exit_code": document.exit_code, "summary": " ".join(document.headline)}
    return {**head, **_plain(document.facts)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {redact(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return redact(value) if isinstance(value, str) else value


# -- the parts of a body ----------------------------------------------------------------------------------------------


def list_trials(tried: Sequence[TrialSummary], seconds: float) -> Section:
    """List every trial, in the order of the trying."""
    rows = [
        (str(number), one.label, one.state.value, one.verdict, f"{one.seconds:.1f}", one.reason)
        for number, one in enumerate(tried, 1)
    ]
    runs = plural(sum(one.runs for one in tried), "run")
    title = f"{plural(len(rows), 'trial')}, {runs}, {format_duration(seconds)} in all"
    return Section(title, tabulate(rows, ("", "candidate", "is", "verdict", "seconds", "why")), folded=True)


def list_where(title: str, context: RunContext) -> Section:
    """List where it was tried, and what was held fixed there."""
    rows = {"Python": context.python, "platform": context.platform, "hardware": context.hardware, **context.held}
    return Section(title, tabulate([*rows.items()]))


def tabulate(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    """Lay out rows in columns, each cell on one line."""
    lines = [tuple(map(one_line, row)) for row in ([head, *rows] if head else rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def list_lines(lines: Iterable[str]) -> str:
    """Lay out lines, the long ones folded."""
    return "\n".join(map(_fill, lines))


def join_names(names: Sequence[str]) -> str:
    """Name some things, the first dozen of them."""
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(map(one_line, names[:MANY])) + more


def excerpt(text: str) -> str:
    """The first lines and the last of what came out: at its end pytest says what it was."""
    lines = [_cut(line) for line in redact(text).strip("\n").split("\n")]
    between = len(lines) - _FIRST - _LAST
    if between > 1:
        lines[_FIRST:-_LAST] = [f"… {plural(between, 'line')} between"]
    return "\n".join(lines)


def whole(text: str) -> str:
    """All of a text of long lines, in lines that can be read."""
    return list_lines(redact(text).strip("\n").split("\n"))


def one_line(text: str) -> str:
    """A text on one line, of a length that can be read."""
    return _cut(unbroken(text))


def unbroken(text: str) -> str:
    """All of a text on one line."""
    return " ".join(redact(text).split())


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _fill(line: str) -> str:
    return textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


#: What keeps a command from its answer, each with a sentence that says why.
PROBLEMS = (RequestError, LockError, IndexProblem, RecordError, GitError, NoSpace, NoUv, OSError)


def run_request(options: argparse.Namespace, find: Callable[[Progress], Document]) -> int:
    """Find the answer, print it and write it; returns the exit code.

    Raises:
        CatalogueError: There is no such failure.
    """
    progress = Progress()
    try:
        for path in filter(None, (options.markdown, options.json)):
            path.parent.mkdir(parents=True, exist_ok=True)
        answer = find(progress)
        progress.set_activity("")
        print(to_text(answer))
        if options.markdown is not None:
            options.markdown.write_text(to_markdown(answer), encoding="utf-8")
        if options.json is not None:
            options.json.write_text(json.dumps(to_json(answer), indent=2) + "\n", encoding="utf-8")
    except PROBLEMS as error:
        progress.set_activity("")
        print(f"rlregress {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress.report_stop(["rlregress", *options.arguments])
        return 130
    return answer.exit_code
