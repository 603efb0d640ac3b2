"""Runs the newest releases and says which verdicts they change: what .github/workflows/stacks.yml does every night.

``python requirements/canary.py HISTORY OUT``. HISTORY is a folder that is kept from night to night: the lock and the
short record of each night on which a release came out, and a page of them. Where verdicts changed OUT gets the issue,
title.txt and body.md, with the answers of the bisects.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import stack_locks
import stack_records
import stacks
import stacks_page
from building import Unbuildable
from stack_locks import LockRequest
from stack_records import ChangedResult

from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.scenarios import component_checks
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import PackageChange, differences
from pytest_rlregress.util.text import code_block, code_span, plural, without_markup

BISECTS = 3  # in a night
BISECT_SECONDS = 5400
STOP_SECONDS = 120  # to tear down a run, after which the bisect is killed
# GitHub takes 256 and 65,536.
_TITLE_CHARACTERS = 200
_BODY_CHARACTERS = 60_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Resolve, run if there is news, compare with the night before, bisect; writes what is to be told."""
    parser = argparse.ArgumentParser(prog="canary.py", description=__doc__)
    parser.add_argument("history", type=Path, metavar="HISTORY", help="folder that is kept from night to night")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the issue, where there is one")
    options = parser.parse_args(arguments)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        night(options.history, options.out, stack_locks.newest(today))
    except (Unbuildable, ValueError) as error:
        print(f"The newest releases could not be tried: {error}", file=sys.stderr)
        return 1
    return 0


def night(history: Path, out: Path, request: LockRequest) -> None:
    """Try the releases of a night.

    Raises:
        Unbuildable: They cannot be resolved or installed.
        ValueError: The run did not come to its end.
    """
    history.mkdir(parents=True, exist_ok=True)
    before = max((path.with_suffix(".txt") for path in history.glob("*.json")), default=None)
    tonight = history / f"{request.name}.txt"
    tonight.write_text(stack_locks.resolve(request), encoding="utf-8")
    released = differences(locks.read(before), locks.read(tonight)) if before else []
    if before and not released:
        tonight.unlink()
        print(f"nothing new since {before.stem}")
        return
    record = stacks.run_lock(tonight)
    known = stack_records.read(before.with_suffix(".json")) if before else {}
    changed = list(stack_records.changes(known, record)) if before else []
    if changed:
        changed = repeated(changed, stack_records.changes(known, stacks.run_lock(tonight)))
    stack_records.write(tonight.with_suffix(".json"), record)
    (history / "README.md").write_text(stacks_page.nights(history), encoding="utf-8")
    if before and changed:
        commands = bisects(changed, before, tonight)
        title, body = issue(request.name, changed, released, {key: (c, ask(c)) for key, c in commands.items()})
        out.mkdir(parents=True, exist_ok=True)
        (out / "title.txt").write_text(title, encoding="utf-8")
        (out / "body.md").write_text(body, encoding="utf-8")
    print(f"{plural(len(released), 'package')} changed, {plural(len(changed), 'verdict')} with them")


def repeated(changed: Iterable[ChangedResult], again: Iterable[ChangedResult]) -> list[ChangedResult]:
    """Select what came out again: what did not is a flake, and no news of a release."""
    words = {change.key: change.after.word for change in again}
    return [change for change in changed if words.get(change.key) == change.after.word]


def bisects(changed: Iterable[ChangedResult], before: Path, after: Path) -> dict[str, list[str]]:
    """Choose the bisects that say which release it was: one a test, the worst changes first, by the change's key.

    A bisect goes from good to bad, so that a repair is asked for backwards. What was or is unavailable or blocked says
    nothing of the failure, and another kind of bad isn't an end either.
    """
    found: dict[str, list[str]] = {}
    asked = set()
    for change in sorted(changed, key=lambda change: -rank(change.after.word)):
        ranks, test = (rank(change.before.word), rank(change.after.word)), _bisected(change.key)
        if Rank.NOTHING in ranks or ranks[0] == ranks[1] or test in asked or len(found) == BISECTS:
            continue
        asked.add(test)
        good, bad = (before, after) if ranks[0] < ranks[1] else (after, before)
        ends = ("--good-lock", str(good), "--bad-lock", str(bad))
        found[change.key] = ["rlregress", "bisect", *ends, "--hw", "cpu", test]
    return found


def _bisected(key: str) -> str:
    """Name a side's failure, a component's check or another test as a bisect does."""
    name, _, role = key.rpartition(" ")
    if role == "component":
        return f"{component_checks.FILE.name}::{component_checks.check_of(name)}"
    return name if stack_records.is_named(key) else key


def ask(command: Sequence[str]) -> str:
    """Run a bisect; its answer as Markdown, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.md")
        program = Path(sys.executable).with_name(command[0])
        running = subprocess.Popen([program, *command[1:], "--markdown", answer], stdout=sys.stderr)
        try:
            status = running.wait(BISECT_SECONDS)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # what it has tried is kept: the same command goes on from there
            try:
                running.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
            return "It did not end in time."
        return answer.read_text(encoding="utf-8") if answer.exists() else f"It ended with {status}, without an answer."


def issue(
    day: str,
    changed: Sequence[ChangedResult],
    released: Sequence[PackageChange],
    answers: Mapping[str, tuple[Sequence[str], str]],
) -> tuple[str, str]:
    """Compose the issue: its title, and its text as Markdown."""
    parts = {name for component in COMPONENTS.values() for name in component.distributions}
    named = [str(change) for change in released if change.name in parts]
    title = f"{plural(len(changed), 'verdict')} changed with the releases of {day}: {', '.join(named) or 'see below'}"
    lines = ["| failure, side | before | now | |", "| --- | --- | --- | --- |"]
    for change in changed:
        note = without_markup(change.after.note)
        lines.append(f"| {code_span(change.key)} | {change.before.word} | **{change.after.word}** | {note} |")
    for key, (command, answer) in answers.items():
        lines += ["", f"## {code_span(key)}", "", code_block(shlex.join(command), "sh"), "", answer.strip()]
    lines += ["", "## Released", "", code_block("\n".join(map(str, released)))]
    return title[:_TITLE_CHARACTERS], "\n".join(lines)[:_BODY_CHARACTERS] + "\n"


if __name__ == "__main__":
    sys.exit(main())
