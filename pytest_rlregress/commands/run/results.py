"""Write the records that a job sent back, and say how it ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytest_rlregress.commands.run import file_transfer
from pytest_rlregress.commands.run.job_log import JobEnd
from pytest_rlregress.util.files import write_whole

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
_RECORD = r"\w[\w.-]*\.jsonl?"


@dataclass(frozen=True)
class JobOutcome:
    """What came back from the job of one hardware.

    Attributes:
        node: Host name and Ray's id of the node, as far as known.
        result: How it ended, in words.
        code: GOOD, FAILED, USAGE or UNKNOWN.
        seconds: From its beginning on the node; if it never came to one, since it was submitted.
        records: Of its run, or the journals of one that was killed.
    """

    hardware: str
    node: str
    result: str
    code: int
    seconds: float
    records: tuple[Path, ...]


def outcome(
    hardware: str, end: JobEnd, seconds: float, folder: Path, *, stopped: str = "", logs: str = ""
) -> JobOutcome:
    """Write the records that came back, and say how the job ended.

    Args:
        hardware: The profile's id.
        end: How the job ended, and its packets.
        seconds: From when it was submitted until now.
        folder: Where the records go.
        stopped: Why it was stopped, if it was.
        logs: The command that prints its log.
    """
    begin, close = (file_transfer.fields_of(end.packets, kind) for kind in ("begin", "end"))
    records, problems = _write(file_transfer.decode_files(end.packets), folder)
    if close:
        result, code = _pytest_result(int(close["exit"]))
        if not records and not problems and code != USAGE:
            problems.append("no record came back")
    else:
        result, code = _why_no_result(end, bool(begin), logs), UNKNOWN
    return JobOutcome(
        hardware,
        f"{begin.get('node', '')} {end.node[:8]}".strip(),
        "; ".join(filter(None, [stopped, result, *problems])),
        UNKNOWN if problems or stopped else code,
        float(close.get("seconds", seconds)),
        tuple(records),
    )


def _pytest_result(exit_code: int) -> tuple[str, int]:
    if exit_code in _PYTEST:
        return _PYTEST[exit_code]
    try:  # 128 and the signal: pytest saw it coming, and ended in order
        name = signal.Signals(-exit_code if exit_code < 0 else exit_code - 128).name
    except ValueError:
        return f"pytest ended with {exit_code}", UNKNOWN
    return f"pytest was {'killed' if exit_code < 0 else 'ended'} by {name}", UNKNOWN


def _why_no_result(end: JobEnd, begun: bool, logs: str) -> str:
    """Say why pytest's exit code is not known."""
    if not end.status:
        return f"it may still run, the cluster does not answer ({end.message}); {logs} shows what it did"
    if begun:
        return "the job ended before pytest had: the node went down, or somebody stopped or killed it"
    if any("No module named" in line and "pytest_rlregress" in line for line in end.tail):
        version = metadata.version("pytest-rlregress")
        return (
            f"the node's Python does not have the harness: pip install pytest-rlregress=={version} there, or name "
            "one that has it with --python"
        )
    if end.status == "PENDING":
        return "never began; should its turn come, Ray stops it at once"
    return f"never began: {end.message.strip().splitlines()[-1] if end.message.strip() else end.status}"


def _write(files: Sequence[file_transfer.TransferredFile], folder: Path) -> tuple[list[Path], list[str]]:
    """Write the records to this disk; returns them, and what is wrong with the others."""
    written, problems = [], []
    for file in files:
        problem = file.problem
        if not re.fullmatch(_RECORD, file.name):
            problem = problem or "not the name of a record"
        path = folder / file.name
        if not problem:
            try:
                write_whole(path, file.content)
                written.append(path)
            except OSError as error:
                problem = f"cannot be written to {folder}: {error.strerror}"
        if problem:
            problems.append(f"record {file.name}: {problem}")
    return written, problems


def table(outcomes: Sequence[JobOutcome]) -> str:
    """Return the table of a run: a line for each hardware, and a line for those of which nothing is known."""
    rows = [("hardware", "node", "seconds", "record", "result")]
    for one in outcomes:
        records = " ".join(map(str, one.records)) or "none"
        rows.append((one.hardware, one.node or "none", f"{one.seconds:.0f}", records, one.result))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows]
    missing = [one.hardware for one in outcomes if not one.records]
    lines += [f"no run, not a pass: {', '.join(missing)}"] if missing else []
    return "\n".join(["", *lines])
