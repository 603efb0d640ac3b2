"""The command ``rlregress report``."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.report import json_document
from pytest_rlregress.records import checking, listing, night_text
from pytest_rlregress.records.changes import Kind, count_changed
from pytest_rlregress.records.history import RecordedRun, night_of, open_history
from pytest_rlregress.records.night import Night, RunComparison, compare, judge_night
from pytest_rlregress.records.reader import RecordError
from pytest_rlregress.records.remote import RemoteError, RemoteRecords, find_here
from pytest_rlregress.records.stories import group_alike, shorten_path
from pytest_rlregress.records.trust import decide, read_trust
from pytest_rlregress.util import arguments
from pytest_rlregress.util.coverage import Result
from pytest_rlregress.util.files import write_whole
from pytest_rlregress.util.text import plural

_PAGE = Path("report.html")
_STDOUT = Path("-")
_WORDS = "\n".join(f"  {kind:16} {kind.sentence}" for kind in Kind if kind is not Kind.STEADY)
_MANUAL = f"""\
examples:
  rlregress report records                                 the page, report.html, and a summary
  rlregress report records --night today --expect h100,h200 --gate
                                                           in CI: exit 1 if something got worse and repeats
  rlregress report records --json - | jq '.changes[] | select(.trips) | .bisect'
  rlregress report --compare before.json after.json again.json
                                                           two runs, the second with a rerun; no nights
  rlregress report records --list only-on=h100             bad there, and good on all other platforms
  rlregress report --check records/NAME.json               may it be sent to others: whole, unedited, of a release

words, of a test on one kind of hardware, against the last run in which it was good:
{_WORDS}
  NO RUN           the hardware did not run: nothing is known, nothing is green

Regressions close the gate. A night lasts from noon to noon UTC and has the name of the day it ends
on. Exit codes: 0; 1 the gate is closed (--gate, --compare), or an answer of --check is no; 3 neither, and hardware
that should have run did not, or nothing could be compared, or an answer is not known; 2 what was asked for cannot be
made; 130 interrupted.
"""


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "report",
        description="Tell from the records of many runs what changed, since when, because of which upgrade, and what "
        "to run next. Without an option that asks for something else it writes a page, report.html.",
        epilog=_MANUAL,
        formatter_class=arguments.ManualFormatter,
    )
    parser.add_argument(
        "records",
        nargs="*",
        metavar="RECORDS",
        help="folders of records (pytest --rl-record-dir), their URLs, or records; - reads their names, one a line",
    )
    parser.add_argument("--compare", nargs="+", metavar="RECORD", help="BEFORE AFTER [AFTER …], no folders")
    parser.add_argument(
        "--list",
        metavar="WHICH",
        help="one list of tests: regressed-since=WHEN (a date, a record or PACKAGE==VERSION), only-on=WHERE (a "
        "platform or a record: bad there and good wherever else it ran), differs (of two records)",
    )
    parser.add_argument(
        "--check", metavar="RECORD", help="whether a record is whole, unedited and of a release, and what it adds"
    )
    parser.add_argument("--gate", action="store_true", help="exit with 1 if something got worse and that repeats")
    parser.add_argument(
        "--night", type=_night, metavar="DATE", help="such as 2026-03-14, or today (default: of the newest record)"
    )
    parser.add_argument("--expect", default="", metavar="LIST", help="hardware that should have run, such as h100,h200")
    numbers = parser.add_argument_group("numbers of training steps, judged against their trusted nights")
    numbers.add_argument(
        "--untrust", action="append", default=[], metavar="RECORD", help="a bad night: never a reference"
    )
    numbers.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="RECORD",
        help="again; of what is outside a new reference begins",
    )
    output = parser.add_argument_group("what is written; - is standard output")
    output.add_argument("--output", type=_output, metavar="FILE", help="one HTML page, which needs no network")
    output.add_argument("--markdown", type=_output, metavar="FILE", help="for a job's summary or an issue on GitHub")
    output.add_argument("--json", type=_output, metavar="FILE", help="for scripts")
    parser.set_defaults(run=run)


def _output(text: str) -> Path:
    return _STDOUT if text == str(_STDOUT) else arguments.output(text)


def _night(text: str) -> datetime.date:
    try:
        return night_of(time.time()) if text == "today" else datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{arguments.shorten(text)} isn't a night. Allowed: a date such as 2026-03-14, or today"
        ) from None


def run(options: argparse.Namespace) -> int:
    """Report; returns the exit code."""
    try:
        if options.check:
            return _check(options)
        if options.list:
            return _list(options)
        return _compare(options) if options.compare else _report(options)
    except (RecordError, RemoteError, OSError) as error:
        print(f"rlregress report: {error}", file=sys.stderr)
        return 2


def _report(options: argparse.Namespace) -> int:
    sources = list(_find_sources(options.records))
    if not sources:
        raise RecordError("name the records: a folder that pytest --rl-record-dir wrote to, or --compare BEFORE AFTER")
    history = open_history(sources)
    _decide_trust(options, history.runs)
    history = replace(history, trust=read_trust(history.runs))
    judged = judge_night(history, options.night, list(filter(None, map(str.strip, options.expect.split(",")))))
    _tell(judged, options)
    made = True
    output = options.output or (None if options.gate or options.markdown or options.json else _PAGE)
    if output is not None:
        try:
            from pytest_rlregress.commands.report.page import page

            _write(output, page.render(judged, history, datetime.datetime.now(datetime.UTC)))
            _say(options, f"page: {output}")
        except (ModuleNotFoundError, OSError) as error:  # must not cost the gate too
            made = False
            print(f"rlregress report: no page: {error}", file=sys.stderr)
            if isinstance(error, ModuleNotFoundError):
                print("pip install 'pytest-rlregress[report]' installs what the page needs", file=sys.stderr)
    code = _close_gate(judged, options) if options.gate else 0
    return code or (0 if made else 2)


def _check(options: argparse.Namespace) -> int:
    others = (options.records, options.compare, options.list, options.gate, options.output, options.night)
    if any(others) or any((options.expect, options.trust, options.untrust)):
        raise RecordError("--check takes one record, and of the other options only --markdown and --json")
    paths = find_here(options.check)
    if len(paths) != 1:
        raise RecordError(f"--check takes one record, and {options.check} has {len(paths)}")
    found = checking.check_record(paths[0])
    text = checking.tell_check(found, shorten_path(paths[0]))
    _tell_text(text, checking.check_as_json(found), options)
    return found.exit_code


def _list(options: argparse.Namespace) -> int:
    others = (options.compare, options.gate, options.output, options.expect, options.trust, options.untrust)
    sources = list(_find_sources(options.records))
    if any(others) or not sources:
        raise RecordError("--list takes RECORDS, and of the other options only --night, --markdown and --json")
    found = listing.make_list(open_history(sources), options.list, options.night)
    _tell_text(listing.tell_list(found), listing.list_as_json(found), options)
    return 0 if found.compared else 3


def _decide_trust(options: argparse.Namespace, runs: Sequence[RecordedRun]) -> None:
    """Write down which records are trusted from now on, also on shared storage."""
    decided = [(record, False) for record in options.untrust] + [(record, True) for record in options.trust]
    for record, is_trusted in decided:
        path = decide(runs, record, is_trusted)
        _say(options, f"{'trusted' if is_trusted else 'untrusted'}: {record}, in {shorten_path(path)}")
    if decided:
        for url in (source for source in options.records if "://" in source):
            RemoteRecords(url).send_trust()


def _compare(options: argparse.Namespace) -> int:
    others = (options.records, options.output, options.night, options.expect, options.trust, options.untrust)
    if len(options.compare) < 2 or any(others):
        raise RecordError(
            "--compare takes two records or more, BEFORE AFTER [AFTER …], and of the other options "
            "only --gate, --markdown and --json"
        )
    before, *after = [path for record in options.compare for path in find_here(record)]
    found = compare(open_history([before, *after]), before, after)
    _tell(found, options)
    return _close_gate(found, options)


def _find_sources(given: Sequence[str]) -> Iterator[Path]:
    for source in given:
        named = sys.stdin.read().splitlines() if source == "-" else [source]
        for line in filter(None, named):
            yield from find_here(line)


def _tell(found: Night | RunComparison, options: argparse.Namespace) -> None:
    """Print the summary, and write the files that were asked for."""
    _tell_text(night_text.tell(found), json_document.as_json(found) if options.json else {}, options)


def _tell_text(text: str, document: dict[str, Any], options: argparse.Namespace) -> None:
    if not _is_stdout_taken(options):
        print(text, end="")
    if options.markdown:
        _write(options.markdown, text)
    if options.json:
        _write(options.json, json.dumps(document, indent=2) + "\n")


def _close_gate(found: Night | RunComparison, options: argparse.Namespace) -> int:
    """Say whether the gate is closed, and of what nothing is known; returns the exit code."""
    coverage = found.coverage
    tripping = [change for change in found.changes if change.trips]
    result = coverage.judge(tripping)
    causes = plural(len(group_alike(tripping)), "cause")
    said = {
        Result.FINDINGS: f"closed, worse and repeated: {count_changed(tripping)} of {causes}",
        Result.PARTIAL: "open for what was compared, and not all that should have run did",
        Result.UNCHECKED: "not judged, nothing was compared",
        Result.CLEAN: "open",
    }[result]
    unknown = "".join(f"\nnot compared: {name}: {one.why}" for name, one in coverage.unchecked)
    _say(options, f"gate: {said}{unknown}")
    return result.exit_code


def _is_stdout_taken(options: argparse.Namespace) -> bool:
    return _STDOUT in (options.markdown, options.json, options.output)


def _say(options: argparse.Namespace, line: str) -> None:
    """Print below the summary; on standard error where standard output is for a file."""
    print(f"\n{line}", file=sys.stderr if _is_stdout_taken(options) else sys.stdout)


def _write(path: Path, text: str) -> None:
    """Write a file atomically; what isn't a file, such as a pipe, is written to."""
    if path == _STDOUT:
        sys.stdout.write(text)
    elif path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
