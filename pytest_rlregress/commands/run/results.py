"""Write the records that jobs sent back, and say how each job ended."""

from __future__ import annotations

import base64
import hashlib
import re
import signal
import time
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlregress.commands.run.cluster import Job
from pytest_rlregress.commands.run.job import MARK
from pytest_rlregress.util.files import write_whole
from pytest_rlregress.util.text import clean

#: Exit codes of a job, and the worst of the run: all passed, tests failed, bad input, or the result is not known.
GOOD, FAILED, USAGE, UNKNOWN = range(4)
#: pytest's exit codes, in words and as one of ours.
_PYTEST = {
    0: ("passed", GOOD),
    1: ("tests failed", FAILED),
    2: ("interrupted", UNKNOWN),
    3: ("an error of pytest", UNKNOWN),
    4: ("refused by pytest: see its output", USAGE),
    5: ("no tests", UNKNOWN),
}
#: A file's name comes from another machine, and the file is to stay in its folder.
_RECORD = re.compile(r"\w[\w.-]{0,200}\.jsonl?")
_MOST_BYTES = 2**30


class _Packet(msgspec.Struct):
    """A line of a job's log for this command: what it says of the job, or a file that it sends."""

    node: str | None = None
    harness: str | None = None
    exit: int | None = None
    seconds: float | None = None
    file: str | None = None
    content: str = ""
    sha256: str = ""


def finish(job: Job, records: Path | str, logs: str) -> None:
    """Write the records that a job sent back, and note how it ended.

    Args:
        job: The job, with its log.
        records: The folder for the records, or the URL to which the job wrote them.
        logs: The command that prints the job's log.
    """
    fields: dict[str, Any] = {}
    written: list[str] = []
    problems: list[str] = []
    for line in job.log.split("\n"):
        if not line.startswith(MARK):
            continue
        try:
            found = msgspec.json.decode(line.removeprefix(MARK), type=_Packet)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            problems.append("the log is torn: a line of it isn't whole")
            continue
        if found.file is None:
            fields |= {key: value for key, value in msgspec.structs.asdict(found).items() if value is not None}
            continue
        problem = _write(found, Path(records))
        (problems if problem else written).append(problem or str(Path(records, found.file)))
    if isinstance(records, str):
        written = re.findall(rf"^record: ({re.escape(records.rstrip('/'))}/\S+\.json)\b", job.log, re.MULTILINE)
    if "exit" in fields:
        words, code = _describe_exit(int(fields["exit"]))
        if not written and not problems and code != USAGE:
            problems.append("no record came back")
    else:
        words, code = _explain_missing_exit(job, "node" in fields, logs), UNKNOWN
    since = time.monotonic() - job.submitted if job.submitted else 0
    job.host, job.seconds, job.records = fields.get("node", ""), float(fields.get("seconds", since)), tuple(written)
    job.words = "; ".join(filter(None, [job.stopped, words, *problems]))
    job.code = UNKNOWN if problems or job.stopped else code


def _write(packet: _Packet, folder: Path) -> str:
    """Write a record that was sent back to this disk; returns what is wrong with it, "" for nothing."""
    name = packet.file or ""
    if not _RECORD.fullmatch(name):
        return f"record {clean(name, 100)}: not the name of a record"
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(packet.content, validate=True), _MOST_BYTES)
        if not unpacking.eof:
            raise ValueError(f"it isn't whole, or has more than {_MOST_BYTES:,} bytes")
    except (ValueError, zlib.error) as error:
        return f"record {name}: damaged on its way: {error}"
    if hashlib.sha256(content).hexdigest() != packet.sha256:
        return f"record {name}: damaged on its way: its digest is another one"
    try:
        write_whole(folder / name, content)
    except OSError as error:
        return f"record {name}: cannot be written to {folder}: {error.strerror}"
    return ""


def _describe_exit(exit_code: int) -> tuple[str, int]:
    if exit_code in _PYTEST:
        return _PYTEST[exit_code]
    try:  # 128 and the signal: pytest saw it coming, and ended in order
        name = signal.Signals(-exit_code if exit_code < 0 else exit_code - 128).name
    except ValueError:
        return f"pytest ended with {exit_code}", UNKNOWN
    return f"pytest was {'killed' if exit_code < 0 else 'ended'} by {name}", UNKNOWN


def _explain_missing_exit(job: Job, has_begun: bool, logs: str) -> str:
    """Say why pytest's exit code is not known."""
    if not job.submitted:
        return f"never began: {job.message}"
    if not job.status:
        return f"it may still run, the cluster does not answer ({job.message}); {logs} shows what it did"
    if has_begun:
        return "the job ended before pytest had: the node went down, or somebody stopped or killed it"
    if re.search("No module named .*pytest_rlregress", job.log):
        version = metadata.version("pytest-rlregress")
        return (
            f"the node's Python does not have the harness: pip install pytest-rlregress=={version} there, or name "
            "one that has it with --python"
        )
    if job.status == "PENDING":
        return "never began; should its turn come, Ray stops it at once"
    return f"never began: {job.message.strip().splitlines()[-1] if job.message.strip() else job.status}"


def table(jobs: Sequence[Job]) -> str:
    """Return the table of a run: a line for each hardware, and a line for those of which nothing is known."""
    rows = [("hardware", "node", "seconds", "record", "result")]
    for job in jobs:
        node = f"{job.host} {job.node[:8]}".strip() or "none"
        rows.append((job.hardware, node, f"{job.seconds:.0f}", " ".join(job.records) or "none", job.words))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["", *("  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows)]
    if missing := [job.hardware for job in jobs if not job.records]:
        lines.append(f"no run, not a pass: {', '.join(missing)}")
    return "\n".join(lines)
