"""Runs the newest releases and says which verdicts they change: what .github/workflows/stacks.yml does every night.

``python tools/canary.py HISTORY OUT``. HISTORY is a folder that is kept from night to night: lock and record of
each night on which a release came out. ``rlregress report --compare`` finds what changed, ``rlregress bisect`` by which
release. Where verdicts changed OUT gets the issue, title.txt and body.md, with the answers of the bisects.
"""

from __future__ import annotations

import datetime
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import stack_locks
import stacks
from building import Unbuildable
from stack_locks import LockRequest

from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import differences
from pytest_rlregress.util.text import code_block, code_span, plural

NEWS = ("regression", "new failing", "lost", "repaired")  # for the issue: what is in doubt is not
BISECTS = 3  # in a night
BISECT_SECONDS = 5400
# GitHub takes 256 and 65,536.
_TITLE_CHARACTERS = 200
BODY_CHARACTERS = 64_000


def night(history: Path, out: Path, request: LockRequest) -> None:
    """Try the releases of a night, compare with the night before, bisect; write what is to be told.

    Raises:
        Unbuildable: They cannot be resolved or installed.
        ValueError: The run did not come to its end.
    """
    history.mkdir(parents=True, exist_ok=True)
    before, tonight = max(history.glob("*.json"), default=None), history / f"{request.name}.json"
    lock, text = tonight.with_suffix(".txt"), stack_locks.resolve(request)
    known = before.with_suffix(".txt") if before else None
    if known and known.read_text(encoding="utf-8").splitlines()[1:] == text.splitlines()[1:]:
        print(f"nothing new since {known.stem}")
        return
    lock.write_text(text, encoding="utf-8")
    released = differences(locks.read(known), locks.read(lock)) if known else []
    shutil.copy(stacks.run_lock(lock), tonight)
    news = compare(out, before, tonight) if before else []
    if before and news:
        news = compare(out, before, tonight, stacks.run_lock(lock))  # what does not come out again is no news
    if before and news:
        named = {name for component in COMPONENTS.values() for name in component.distributions}
        parts = ", ".join(str(one) for one in released if one.name in named) or "see below"
        title = f"{plural(len(news), 'verdict')} changed with the releases of {request.name}: {parts}"
        (out / "title.txt").write_text(title[:_TITLE_CHARACTERS], encoding="utf-8")
        lines = [(out / "body.md").read_text(encoding="utf-8")]
        for command in choose_bisects(news, before, tonight):
            lines += [f"## {code_span(command[-1])}", "", code_block(shlex.join(command), "sh"), "", bisect(command)]
        (out / "body.md").write_text("\n".join(lines)[:BODY_CHARACTERS] + "\n", encoding="utf-8")
    print(f"{plural(len(released), 'package')} changed, {plural(len(news), 'verdict')} with them")


def compare(out: Path, before: Path, *after: Path) -> list[dict[str, Any]]:
    """Compare a night's runs with the night before; the report is OUT/body.md, returned are the changes that are news.

    Of one run all changes are: whether they come out again is not known yet.
    """
    out.mkdir(parents=True, exist_ok=True)
    body, changes = out / "body.md", out / "changes.json"
    command = [_program(), "report", "--compare", before, *after, "--markdown", body, "--json", changes]
    if subprocess.run(command, stdout=sys.stderr).returncode > 1:  # 1: something got worse
        raise ValueError("the records could not be compared")
    found = json.loads(changes.read_text(encoding="utf-8"))["changes"]
    return [one for one in found if one["kind"] in NEWS or (one["kind"] == "unconfirmed" and len(after) == 1)]


def choose_bisects(news: list[dict[str, Any]], before: Path, tonight: Path) -> list[list[str]]:
    """Choose the bisects that say which release it was, one a failure or test; a repair is asked for backwards."""
    commands: dict[str, list[str]] = {}
    for one in sorted(news, key=lambda one: NEWS.index(one["kind"])):
        test = one["failure"] or one["test"]
        if one["kind"] == "repaired":
            ends = ["--from-record", str(tonight), "--to-record", str(before)]
            commands.setdefault(test, ["rlregress", "bisect", *ends, "--hw", "cpu", test])
        elif one["bisect"]:
            commands.setdefault(test, one["bisect"])
    return list(commands.values())[:BISECTS]


def bisect(command: list[str]) -> str:
    """Run a bisect; return its answer as Markdown, or why there is none."""
    answer = stacks.ENVIRONMENTS / "answer.md"
    answer.unlink(missing_ok=True)
    # What it has tried is kept: the same command goes on from there. Tearing down a run takes its time.
    limit = ("timeout", "--signal=INT", "--kill-after=120", str(BISECT_SECONDS))
    status = subprocess.run([*limit, _program(), *command[1:], "--markdown", answer], stdout=sys.stderr).returncode
    return answer.read_text(encoding="utf-8") if answer.exists() else f"It ended with {status}, without an answer."


def _program() -> Path:
    return Path(sys.executable).with_name("rlregress")


if __name__ == "__main__":
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        night(Path(sys.argv[1]), Path(sys.argv[2]), stack_locks.newest(today))
    except (Unbuildable, ValueError) as error:
        sys.exit(f"The newest releases could not be tried: {error}")
