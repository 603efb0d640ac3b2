"""``rlregress diagnose``: name the documented failures that logs show."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_rlregress import catalogue
from pytest_rlregress.diagnose import reader
from pytest_rlregress.diagnose.findings import Diagnosis, LogFinding

_STDIN = Path("-")
_WIDTH = 100


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "diagnose",
        description="Name the documented failures that logs show, the most specifically identified first, with lines, "
        "cause and remedy, and what else went wrong in them. The exit code is 1 if there is a documented failure, 0 if "
        "none, 2 for a log that cannot be read.",
    )
    parser.add_argument("log", nargs="*", type=Path, help="log files, plain or gzipped; - or none: standard input")
    catalogue.declare(parser)
    parser.add_argument("--json", action="store_true", help="as a JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the logs and print what they show; returns the exit code."""
    logs: list[Path] = options.log or [_STDIN]
    if not options.log and sys.stdin.isatty():
        print("rlregress diagnose: no log; give files, or pipe one in", file=sys.stderr)
        return 2
    diagnosis = Diagnosis(catalogue.load([catalogue.SHIPPED, *options.scenarios]))
    unread = []
    for path in logs:
        name = "standard input" if path == _STDIN else str(path)
        progress = _progress_printer(path)
        try:
            lines = (
                reader.read_stream(sys.stdin.buffer, name, diagnosis.search, progress)
                if path == _STDIN
                else reader.read(path, diagnosis.search, progress)
            )
            diagnosis.read(name, lines)
        except reader.LogError as error:
            unread.append(str(error))
        except KeyboardInterrupt:
            progress(-1)
            print("rlregress diagnose: interrupted", file=sys.stderr)
            return 130
        progress(-1)
    diagnosis.end()
    print(json.dumps(_as_json(diagnosis, unread), indent=2) if options.json else _as_text(diagnosis))
    for reason in unread:
        print(f"rlregress diagnose: {reason}", file=sys.stderr)
    return 2 if unread else int(bool(diagnosis.documented))


def _progress_printer(path: Path) -> Callable[[int], None]:
    """Return a function that shows on a terminal how many bytes are read; -1 takes that away."""
    if not sys.stderr.isatty():
        return lambda _: None
    total = 0
    if path.is_file():
        total = os.stat(path).st_size
    begun = printed = time.monotonic()

    def show(done: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if done < 0:
            sys.stderr.write("\r\x1b[K" * (printed > begun))
        elif now > printed + 0.5:
            printed = now
            share = f"{done / total:.0%} of " if total else f"{done / 1e6:.0f} MB of "
            sys.stderr.write(f"\r\x1b[K{share}{path}, {done / 1e6 / (now - begun):.0f} MB/s")
        sys.stderr.flush()

    return show


def _as_text(diagnosis: Diagnosis) -> str:
    paragraphs = [_documented(finding) for finding in diagnosis.documented]
    if diagnosis.unknown:
        seen = [f"  {_where(finding)}: {_short(finding.what)}{_times(finding)}" for finding in diagnosis.unknown]
        more = [f"  and {diagnosis.left_out} more"] * bool(diagnosis.left_out)
        paragraphs.append("\n".join(["Seen, and not documented:", *seen, *more]))
    count = len(diagnosis.documented)
    paragraphs.append(f"{count or 'no'} documented failure{'s' * (count != 1)}")
    return "\n\n".join(paragraphs)


def _documented(finding: LogFinding) -> str:
    failure = finding.failure
    assert failure is not None
    lines = [f"{failure.id}: {failure.title}", f"  {_where(finding)}{_times(finding)}"]
    lines += [f"    {number:>7}  {_short(text)}" for number, text in finding.places[0].lines]
    for key, text in (("cause", failure.cause), ("remedy", failure.remedy)):
        lines.append(textwrap.fill(f"  {key}: {text}", _WIDTH, subsequent_indent="    "))
    return "\n".join(lines)


def _where(finding: LogFinding) -> str:
    place = finding.places[0]
    return f"{place.log}:{place.number}"


def _times(finding: LogFinding) -> str:
    if finding.count == 1:
        return ""
    others = ", ".join(f"{place.log}:{place.number}" for place in finding.places[1:])
    return f" ({finding.count} times, also {others}{', …' * (finding.count > len(finding.places))})"


def _short(text: str) -> str:
    text = " ".join(text.split("\n"))
    return text if len(text) <= 200 else f"{text[:199]}…"


def _as_json(diagnosis: Diagnosis, unread: list[str]) -> dict[str, object]:
    return {
        "documented": [
            {
                "id": finding.failure.id,
                "title": finding.failure.title,
                "cause": finding.failure.cause,
                "remedy": finding.failure.remedy,
                **_counted(finding),
            }
            for finding in diagnosis.documented
            if finding.failure
        ],
        "unknown": [{"what": finding.what, **_counted(finding)} for finding in diagnosis.unknown],
        "unknown_left_out": diagnosis.left_out,
        "unread": unread,
    }


def _counted(finding: LogFinding) -> dict[str, object]:
    places = [
        {"log": place.log, "line": place.number, "lines": [{"number": n, "text": text} for n, text in place.lines]}
        for place in finding.places
    ]
    return {"count": finding.count, "places": places}
