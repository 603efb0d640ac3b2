"""Admits new and changed scenarios: ``make admit ARGS=failure-id``.

Each test of a failure runs ten times in one run of pytest, where the repeats share a server,
children and engines, and once in each of five more runs. A test is refused if two of its verdicts
differ, if all of them are bad, or if it once took more than 80 % of its limit. Records and output
of the runs stay in .admit/.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from building import CHECKOUT
from repeats import split_name

from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records import reader
from pytest_rlregress.records.record_types import Record
from pytest_rlregress.util.git import GitError, git
from pytest_rlregress.util.text import clean, plural

RUNS = CHECKOUT / ".admit"
GROUP = "one group"
#: Of its limit, what a test may take: the next machine is slower.
SHARE = 0.8
#: What a run that was stopped says of the tests that it did not get to.
_UNREACHED = ("pending", "interrupted")
_STOP_SECONDS = 60
#: Exit codes of a run that came to its end: no test failed, some did.
_ENDED = (0, 1)


class Unadmittable(Exception):
    """A run that says nothing of its tests: a sentence that says why."""


@dataclass(frozen=True)
class Result:
    """What came of a test once.

    Attributes:
        where: The run, and in it the repeat.
        word: The verdict, or pytest's word.
    """

    where: str
    word: str
    seconds: float
    failure: str = ""
    note: str = ""


Results = Mapping[str, Sequence[Result]]


@dataclass(frozen=True)
class Plan:
    """The runs of an admission: how many repeats share one group, and how many runs are fresh."""

    repeats: int
    fresh: int

    @property
    def total(self) -> int:
        """How many results a test has in the end."""
        return self.repeats + self.fresh

    def list_runs(self) -> list[tuple[str, int]]:
        """List the runs, and how often a test stands in each.

        A fresh one comes first, so that a short time has both kinds.
        """
        alone = [(f"fresh run {number}", 1) for number in range(1, self.fresh + 1)]
        together = [(GROUP, self.repeats)] if self.repeats else []
        return [*alone[:1], *together, *alone[1:]]


# -- what the results say ----------------------------------------------------------------------------------------------


def read_results(where: str, record: Record) -> Iterator[tuple[str, Result]]:
    """Read what came of each test that a run reached, by its name without the repeat."""
    for test in record.results.tests:
        name, number = split_name(test.name)
        if test.extra.component or test.word in _UNREACHED:
            continue
        place = f"repeat {number} of {where}" if number else where
        note = test.extra.note or test.message
        yield name, Result(place, test.word, test.duration / 1000, test.extra.failure, note)


def find_objections(results: Results, limits: Mapping[str, float], expected: int | None = None) -> dict[str, list[str]]:
    """Find what speaks against tests, by their names; a test that is fine is left out.

    Args:
        results: What came of each test.
        limits: The seconds that it may take; tests whose act hangs as documented have none here.
        expected: How many results each should have; None after a run that was stopped.
    """
    found = {
        name: [
            *_object_to_verdicts(some),
            *_object_to_time(some, limits.get(name)),
            *_object_to_absence(some, expected),
        ]
        for name, some in results.items()
    }
    return {name: reasons for name, reasons in found.items() if reasons}


def _object_to_verdicts(results: Sequence[Result]) -> Iterator[str]:
    counts = Counter(one.word for one in results)
    usual, often = counts.most_common(1)[0]
    if len(counts) == 1:
        if rank(usual) is Rank.FAILING:
            yield f"{usual} in {_tell_all(often)}: {clean(results[0].note, 200)}"
        return
    others = [one for one in results if one.word != usual]
    places = ", ".join(f"{one.word} in {one.where}" for one in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    why = next((f": {clean(one.note, 200)}" for one in others if one.note), "")
    yield f"{usual} in {often} of {len(results)}, but {places}{more}{why}"


def _tell_all(count: int) -> str:
    return f"all {count}" if count > 1 else "the only one"


def _object_to_time(results: Sequence[Result], limit: float | None) -> Iterator[str]:
    slowest = max(results, key=lambda one: one.seconds)
    if limit is not None and slowest.seconds > SHARE * limit:
        yield f"took {slowest.seconds:.3g} s in {slowest.where}, more than {SHARE:.0%} of its limit, {limit:g} s"


def _object_to_absence(results: Sequence[Result], expected: int | None) -> Iterator[str]:
    if expected is not None and len(results) < expected:
        places = ", ".join(one.where for one in results[:3])
        yield f"ran {len(results)} of {expected} times: its name differs between runs; it was in {places}"


def list_unreached(results: Results, plan: Plan, done: Collection[str]) -> list[str]:
    """List what was not reached, in words: runs that weren't begun, results that a run did not give."""
    found = []
    for run, times in plan.list_runs():
        had = sum(one.where.endswith(run) for some in results.values() for one in some)
        if run not in done:
            found.append(run)
        elif had < times * len(results):
            found.append(f"{times * len(results) - had} of {plural(times * len(results), 'result')} in {run}")
    return found


def describe_admitted(results: Results, failures: Iterable[str], unreached: Sequence[str]) -> str:
    """Say in one sentence what was admitted, what gave no verdict, and what was not reached."""
    judged = {name: some for name, some in results.items() if rank(some[0].word) is not Rank.NOTHING}
    without = [one for one in failures if one not in {some[0].failure for some in judged.values()}]
    compared = {name: some for name, some in judged.items() if len(some) > 1}
    words = Counter(some[0].word for some in compared.values())
    told = ", ".join(f"{count} {word}" for word, count in words.items())
    counts = sorted({len(some) for some in compared.values()})
    often = " to ".join(str(one) for one in dict.fromkeys([*counts[:1], *counts[-1:]]))
    sentence = "nothing was admitted: no test gave a verdict twice"
    if compared:
        sentence = f"admitted: {plural(len(compared), 'test')} ({told}) said the same {often} times"
    if without:
        sentence += f"; no verdict here of {', '.join(without)}"
    if unreached:
        sentence += f"; not reached in time: {', '.join(unreached)}"
    return f"{sentence}."


# -- the runs ----------------------------------------------------------------------------------------------------------


def list_changed(ref: str, checkout: Path = CHECKOUT) -> list[str]:
    """List the failures whose folders differ from where this branch left another.

    Files that git doesn't track count too.

    Raises:
        GitError: There is no such commit, or none from which both come.
    """
    differs = git(checkout, "diff", "--name-only", "--merge-base", ref, "--", "scenarios").splitlines()
    new = git(checkout, "ls-files", "--others", "--exclude-standard", "--", "scenarios").splitlines()
    changed = {Path(name).parents[-4].name for name in [*differs, *new] if len(Path(name).parts) > 3}
    known = catalogue.load([checkout / "scenarios"])
    return [failure.id for failure in known.values() if failure.folder.name in changed]


def run(name: str, times: int, failures: Sequence[str], arguments: Sequence[str], deadline: float) -> Record:
    """Run all tests of the failures so many times.

    A run that is late is stopped, and its record says what it reached.

    Raises:
        Unadmittable: pytest did not come to the end of its tests, though it had the time.
    """
    folder = RUNS / name.replace(" ", "-")
    folder.mkdir(parents=True)
    ours = ["-p", "repeats", f"--repeats={times}", f"--limits={RUNS / 'limits.json'}", f"--rl-record-dir={folder}"]
    command = [Path(sys.executable).with_name("pytest"), *ours, f"--rl-failure={','.join(failures)}", *arguments]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    output = folder / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env={**os.environ, "PYTHONPATH": paths}, stdout=file, stderr=file
        )
        try:
            process.wait(max(deadline - time.monotonic(), 0) if deadline else None)
        except subprocess.TimeoutExpired:
            process.terminate()  # pytest writes its record then
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        finally:
            process.kill()
            process.wait()
    is_late = deadline > 0 and time.monotonic() >= deadline
    for path in folder.glob("[!.]*.json*"):
        with suppress(reader.RecordError):
            record = reader.read(path)
            if is_late or process.returncode in _ENDED:
                return record
    lines = output.read_text(errors="replace").strip().splitlines() or ["nothing was printed"]
    raise Unadmittable(f"{name}: pytest ended with exit code {process.returncode}: {clean(lines[-1], 300)}")


def admit(failures: Sequence[str], plan: Plan, within: float, arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Run what is planned; return whether all is admitted, and the lines that say so.

    Raises:
        Unadmittable: A run says nothing of its tests.
    """
    deadline = time.monotonic() + within if within else 0
    shutil.rmtree(RUNS, ignore_errors=True)
    results: dict[str, list[Result]] = {}
    done = []
    for name, times in plan.list_runs():
        if deadline and time.monotonic() >= deadline:
            break
        begun = time.monotonic()
        record = run(name, times, failures, arguments, deadline)
        for test, result in read_results(name, record):
            results.setdefault(test, []).append(result)
        done.append(name)
        print(f"{name} of {', '.join(failures)}: {time.monotonic() - begun:.0f} s", flush=True)
    file = RUNS / "limits.json"
    limits = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    unreached = list_unreached(results, plan, done)
    if objections := find_objections(results, limits, None if unreached and deadline else plan.total):
        return False, [f"{name}: {'; '.join(reasons)}" for name, reasons in objections.items()]
    return True, [describe_admitted(results, failures, unreached)]


def main(given: Sequence[str]) -> int:
    """Admit the failures that are named; 1 if one is refused, 2 if nothing can be said of them."""
    end = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="make admit", description=__doc__, epilog="What follows -- goes to pytest.")
    parser.add_argument("failures", nargs="*", help="ids of failures")
    parser.add_argument("--changed-since", metavar="REF", help="the failures whose folders differ from this commit")
    parser.add_argument("--within", type=float, default=0, metavar="SECONDS", help="what is late by then is not run")
    parser.add_argument("--repeats", type=int, default=10, help="how often in one group (default: 10)")
    parser.add_argument("--fresh", type=int, default=5, help="how many runs of their own (default: 5)")
    asked = parser.parse_args(given[:end])
    failures = list(dict.fromkeys(asked.failures))
    try:
        if asked.changed_since:
            failures += [one for one in list_changed(asked.changed_since) if one not in failures]
        if not failures:
            if not asked.changed_since:
                parser.error("name a failure, or --changed-since REF")
            print(f"no scenario's folder differs from {asked.changed_since}.")
            return 0
        plan = Plan(max(asked.repeats, 0), max(asked.fresh, 0))
        admitted, lines = admit(failures, plan, asked.within, given[end + 1 :])
    except (GitError, Unadmittable) as error:
        print(f"admit: {error}", file=sys.stderr)
        return 2
    print(*lines, sep="\n")
    return int(not admitted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
