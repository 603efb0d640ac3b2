"""Reads the records that others sent: those in records/ of the repository, for docs/stacks.md."""

from __future__ import annotations

import re
from pathlib import Path

from building import CHECKOUT
from short_records import RecordedStack, shorten

from pytest_rlregress.failures.verdicts import Verdict
from pytest_rlregress.records import reader
from pytest_rlregress.records.checking import check_record
from pytest_rlregress.records.record_types import Record
from pytest_rlregress.util.git import git
from pytest_rlregress.util.text import clean, quoted

#: What the page says of them.
ABOUT = (
    "A stack whose link is a record was [sent](record.md#run-it-on-your-card-and-send-the-record) by somebody who has "
    "that card. What ran it was not seen here."
)
_NAME = re.compile(r"\d{8}T\d{6}Z-([a-z0-9-]+-[0-9a-f]{6})\.json")


class RefusedRecord(ValueError):
    """A record that does not pass its check: the message names it and says why."""


def list_files(checkout: Path = CHECKOUT) -> list[Path]:
    """List the records in records/ that git tracks: a run here may have left others there.

    Raises:
        GitError: It isn't a checkout.
    """
    return [checkout / name for name in git(checkout, "ls-files", "--", "records/*.json").splitlines()]


def read_sent(path: Path) -> RecordedStack:
    """Read a record that somebody sent.

    Raises:
        RefusedRecord: It isn't a record, or ``rlregress report --check`` does not end with 0.
    """
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise RefusedRecord(
            f"{path}: not a record's name. Allowed: as pytest wrote it, 20261120T020057Z-h20-65584b.json"
        )
    try:
        answers = check_record(path).answers
        record, lock = reader.read(path), reader.lock(path)
    except ValueError as error:
        raise RefusedRecord(str(error)) from None
    if wrong := [f"{question}: {why}" for question, (is_so, why) in answers.items() if not is_so]:
        raise RefusedRecord(f"{path}: does not pass rlregress report --check: {'; '.join(wrong)}")
    unknown = {test.extra.verdict for test in record.results.tests} - {"", *Verdict}
    if unknown:  # words stand in the pages as they are
        raise RefusedRecord(f"{path}: not verdicts: {', '.join(map(quoted, sorted(unknown)))}")
    place = f"{path.parent.name}/{path.name}"
    return RecordedStack(named[1], _describe(record), place, lock, shorten(record.results.tests))


def _describe(record: Record) -> str:
    """Return a sentence on what a record was made on, when and by what."""
    extra = record.results.extra
    hardware, release = extra.hardware, next(line for line in extra.stack.requirements if "rlregress==" in line)
    names = dict.fromkeys(device.name for device in hardware.devices)
    cards = [*names] or [hardware.cpu.model if hardware.cpu else "a CPU"]
    parts = [
        *cards,
        f"driver {hardware.driver}" if hardware.driver else "",
        f"Python {extra.stack.python or 'unknown'}",
    ]
    parts += [release.replace("==", " "), record.timestamp.partition("T")[0], " ".join(extra.run.selection)]
    return f"Sent: {clean(', '.join(filter(None, parts)), 300)}."
