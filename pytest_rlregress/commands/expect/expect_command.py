"""The command ``rlregress expect``."""

from __future__ import annotations

import argparse
import datetime
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_rlregress import hardware
from pytest_rlregress.commands.expect.proposal import Proposal, is_teardown, propose
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records import EXPECTATIONS
from pytest_rlregress.records.expectations import TABLE, Expectation, ExpectationError, read_entries
from pytest_rlregress.records.reader import RecordError, read
from pytest_rlregress.records.record_types import Record
from pytest_rlregress.records.remote import RemoteError, find_here
from pytest_rlregress.util import arguments, toml_table
from pytest_rlregress.util.files import write_whole

_MANUAL = """\
examples:
  rlregress expect records/20260314-h100.json --because "vLLM 0.32 renamed it" --issue https://…/issues/12
                                                           what would be written
  rlregress expect before.json after.json --because … --issue … --until 2026-06-01 --write
                                                           the condition is what differs between the two

All that failed gets the one reason and issue: where there are several, write the file, and part its entries by hand.
Give a record in which the tests were good too: then the entry says with which versions, or on which hardware, they are
bad. An entry that is there is never changed: what would loosen one is said, and left to you. docs/expect.md has the
keys.
Exit codes: 0; 1 not all that failed can be expected so, or an entry would be loosened; 3 no test
came to a result; 2 bad input.
"""


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "expect",
        description="Write down what failed in a record as expected, with the reason and the issue at which it is "
        "looked after, so that the next run is red only for what is new.",
        epilog=_MANUAL,
        formatter_class=arguments.ManualFormatter,
    )
    parser.add_argument("records", nargs="+", metavar="RECORD", help="records, folders of them, or their URLs")
    parser.add_argument(
        "--because", required=True, type=_sentence, metavar="TEXT", help="why these verdicts are expected"
    )
    parser.add_argument("--issue", required=True, type=_sentence, metavar="URL", help="where that is looked after")
    parser.add_argument("--until", type=_day, metavar="DATE", help="the day from which it no longer is")
    parser.add_argument(
        "--file", type=arguments.path, default=Path(EXPECTATIONS), metavar="FILE", help=f"default: {EXPECTATIONS} here"
    )
    parser.add_argument("--write", action="store_true", help="write the file, not only what would be in it")
    catalogue.declare(parser)
    parser.set_defaults(run=run)


def _day(text: str) -> str:
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a day. Allowed: a date such as 2026-03-14") from None
    if day <= datetime.date.today():
        raise argparse.ArgumentTypeError(f"{text} is over. Allowed: a day from tomorrow on")
    return day.isoformat()


def _sentence(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty. Allowed: a text")
    return text


def run(options: argparse.Namespace) -> int:
    """Propose entries, or write them; return the exit code."""
    try:
        return _expect(options)
    except (RecordError, RemoteError, ExpectationError, hardware.HardwareError, OSError) as error:
        print(f"rlregress expect: {error}", file=sys.stderr)
        return 2


def _expect(options: argparse.Namespace) -> int:
    if not options.file.parent.is_dir():
        raise ExpectationError(f"--file {options.file}: there is no folder {options.file.parent}")
    records = sorted(_read(options.records), key=lambda record: record.results.summary.start)
    before = toml_table.read(options.file, ExpectationError) if options.file.exists() else ""
    new, looser = _sort_out(propose(records), _read_entries(before, options))
    blocks = [one.write(options.because, options.issue, options.until or "") for one in new]
    whole = "\n".join([f"{before.rstrip()}\n", *blocks] if before.strip() else blocks)
    if blocks:
        if before.strip() and TABLE in tomllib.loads(before) and f"[[{TABLE}]]" not in before:
            raise ExpectationError(f"{options.file}: its entries have to be tables of their own, [[{TABLE}]]")
        _read_entries(whole, options)  # an address that isn't one, say, is refused before anything is written
        if options.write:
            write_whole(options.file, whole)
        else:
            print("\n".join(blocks))
        print(
            f"{len(new)} {'entry' if len(new) == 1 else 'entries'} {'in' if options.write else 'for'} {options.file}."
        )
    elif not any(rank(test.word) is not Rank.NOTHING for record in records for test in record.results.tests):
        print("Nothing to expect: no test of these records came to a result.")
        return 3
    else:
        print("Nothing new to expect: no test failed that isn't expected.")
    for proposal, entry in looser:
        words = ", ".join(proposal.verdicts)
        print(
            f"{entry.place} expects {', '.join(entry.verdicts)} of {entry.about}, and it is {words} now: not changed."
        )
    left = [test.name for record in records for test in record.results.tests if is_teardown(test)]
    for name in dict.fromkeys(left):
        print(f"{name} failed after its act, by what it left behind: that can't be expected.")
    return int(bool(looser or left))


def _read(given: Sequence[str]) -> Iterator[Record]:
    for source in given:
        for path in find_here(source):
            files = sorted(path.glob("*.json")) if path.is_dir() else [path]
            if not files:
                raise RecordError(f"{path}: no record in this folder. pytest --rl-record-dir=DIR writes one")
            yield from map(read, files)


def _read_entries(text: str, options: argparse.Namespace) -> tuple[Expectation, ...]:
    known = catalogue.load([catalogue.SHIPPED, *options.scenarios])
    return read_entries(text, options.file, known, hardware.load_profiles(()))


def _sort_out(
    proposals: Iterable[Proposal], entries: Sequence[Expectation]
) -> tuple[list[Proposal], list[tuple[Proposal, Expectation]]]:
    """Return the proposals that are new, and those that would loosen an entry, with it."""
    new, looser = [], []
    for proposal in proposals:
        entry = next((one for one in entries if proposal.is_about_what(one)), None)
        if entry is None:
            new.append(proposal)
        elif not {*proposal.verdicts} <= {*entry.verdicts}:
            looser.append((proposal, entry))
    return new, looser
