"""Mutation testing of the remedies: ``make mutants``, or of some modules, ``make mutants ARGS="batch losses"``.

Writes ``.mutants/score.md`` and, of each module, the mutants that live to ``.mutants/survivors/MODULE.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from mutants import SUBJECTS
from mutation.generation import REMEDIES, RemedyMutant, write_package
from mutation.under_mutants import ENDED, VARIABLE
from pytest_rlregress import remedies
from pytest_rlregress.failures import catalogue

OUT = Path(".mutants")
#: Survivors that no guard can fail for, with the reason; an entry without ``added`` is for every change to its lines.
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
EVERY = "*"
FAILURES = [failure for failure in catalogue.load([catalogue.SHIPPED]).values() if failure.subject]
SILENT_SECONDS = 900.0  # an engine's start, a cluster's, the imports of a stack
MORE_SECONDS = 30.0  # for a mutant that the guard's process cannot end by itself


def main() -> int:
    """Run the modules that are asked for, and report; the exit code is 1 where the list of equivalents is stale."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="of pytest_rlregress/remedies; all by default")
    parser.add_argument("-n", type=int, default=2, help="folders of scenarios at a time")
    parser.add_argument(
        "--longest", type=float, default=600.0, help="seconds of a guard, unmutated; others are left out"
    )
    options = parser.parse_args()
    known = sorted(path.stem for path in REMEDIES.glob("[a-z]*.py"))
    if unknown := set(options.modules) - set(known):
        parser.error(f"no modules of {REMEDIES}: {', '.join(sorted(unknown))}")
    begun = time.monotonic()
    mutants = write_package(OUT / "package", options.modules or known)
    tried = _run_folders(mutants, options.n, options.longest)
    return _report(mutants, tried, time.monotonic() - begun)


def _run_folders(mutants: list[RemedyMutant], at_a_time: int, longest: float) -> dict[str, list[dict[str, Any]]]:
    """Run each scenario folder whose guards have a remedy among the mutated modules; what was tried of each mutant."""
    modules = {mutant.module for mutant in mutants}
    folders = defaultdict(set)
    for failure in FAILURES:
        folders[failure.area].add(getattr(remedies, failure.subject or "").__module__.rpartition(".")[2])
    tried: dict[str, list[dict[str, Any]]] = defaultdict(list)
    stop = threading.Event()

    def run(folder: str) -> None:
        killed = {name for name, runs in tried.items() if any(one["verdict"] == "killed" for one in runs)}
        left = [mutant for mutant in mutants if mutant.name not in killed]
        for entry in _run_folder(folder, left, longest, stop):
            if "mutant" in entry and entry["verdict"] != "suspect":
                tried[entry["mutant"]].append(entry)

    with ThreadPoolExecutor(at_a_time) as pool:
        runs = [pool.submit(run, folder) for folder, own in folders.items() if own & modules]
        try:
            for one in runs:
                one.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return tried


def _run_folder(
    folder: str, mutants: Iterable[RemedyMutant], longest: float, stop: threading.Event
) -> list[dict[str, Any]]:
    """Run a folder's guards under mutants, in as many processes after each other as it takes; the journal's entries."""
    place = OUT / "folders" / folder
    place.mkdir(parents=True, exist_ok=True)
    journal = place / "journal.jsonl"
    journal.unlink(missing_ok=True)
    failures = [failure.id for failure in FAILURES if failure.area == folder]
    reached_by = {mutant.name: mutant.reached_by for mutant in mutants}
    plan = {"mutants": reached_by, "failures": failures, "longest": longest}
    (place / "plan.json").write_text(json.dumps(plan))
    search = [str((OUT / "package").resolve()), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "RLREGRESS_MUTATION": str(place.resolve()),
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
    }
    environment.pop(VARIABLE, None)
    environment.setdefault("OMP_NUM_THREADS", "1")  # for models this small more of them only wait for each other
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "--hw=cpu",
        "--rl-inline",
        "-q",
        "--tb=line",
        "-p",
        "no:cacheprovider",
    ]
    command += [*SUBJECTS, "-p", "mutation.under_mutants", "--pyargs", f"pytest_rlregress.scenarios.{folder}"]
    entries: list[dict[str, Any]] = []
    while not any("finished" in entry for entry in entries):
        before = len(entries)
        with (place / "pytest.log").open("a") as log:
            # In a folder without the package: what a process runs by -c or -m it looks for there first.
            process = psutil.Popen(
                command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                _watch(process, journal, stop)
            finally:
                _end(process)
        entries = _entries(journal)
        if len(entries) == before:
            raise RuntimeError(f"the guards of {folder} do not run: see {place / 'pytest.log'}")
        if stop.is_set():
            break
    if stop.is_set():
        return entries
    useless = [f"{entry['guard']}: {entry['useless']}" for entry in entries if "useless" in entry]
    print(f"{folder}: done" + "".join(f"\n  not used: {line}" for line in useless), flush=True)
    return entries


def _watch(process: psutil.Popen, journal: Path, stop: threading.Event) -> None:
    """Wait for the end of a process, and end it where it is stopped or hangs."""
    while not stop.is_set():
        try:
            process.wait(1)
            return
        except psutil.TimeoutExpired:
            last = (_entries(journal) or [{}])[-1]
            since = time.time() - max(process.create_time(), journal.stat().st_mtime if journal.exists() else 0.0)
            if since > (last["limit"] + MORE_SECONDS if "begins" in last else SILENT_SECONDS):
                return


def _end(process: psutil.Popen) -> None:
    """Kill a process with what descends from it."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for one in family:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _entries(journal: Path) -> list[dict[str, Any]]:
    text = journal.read_text() if journal.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _report(mutants: list[RemedyMutant], tried: dict[str, list[dict[str, Any]]], seconds: float) -> int:
    """Print and write the score and the survivors."""
    listed = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", []) if EQUIVALENT.exists() else []
    reasons = {
        (one["module"], one["function"], one["removed"], added): one["reason"]
        for one in listed
        for added in one.get("added", [EVERY])
    }
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    living: dict[str, list[str]] = defaultdict(list)
    notes, used = [], set()
    for mutant in mutants:
        keys = [(mutant.module, mutant.function, mutant.removed, added) for added in (mutant.added, EVERY)]
        used.update(keys)
        reason = next((reasons[key] for key in keys if key in reasons), None)
        runs = tried.get(mutant.name, [])
        killed = any(one["verdict"] == "killed" for one in runs)
        if killed and keys[0] in reasons:
            notes.append(
                f"{EQUIVALENT.name}: {mutant.module}.{mutant.function} is killed, so not equivalent: {mutant.added}"
            )
        counts[mutant.module]["killed" if killed else "equivalent" if reason else "survived"] += 1
        if not killed and not reason:
            lines = [
                *(f"- {one}" for one in mutant.removed.split("\n")),
                *(f"+ {one}" for one in mutant.added.split("\n")),
            ]
            diff = "\n".join(lines)
            by = f"lived through {len(runs)} runs" if runs else "no guard reaches it"
            living[mutant.module].append(f"## {mutant.function}, line {mutant.line}: {by}\n\n```diff\n{diff}\n```\n")
    notes += [
        f"{EQUIVALENT.name}: no such mutant any more: {'.'.join(key[:2])}: {key[3]}"
        for key in reasons
        if key[0] in counts and key not in used
    ]
    counts["all"] = sum(counts.values(), Counter())
    rows = ["| module | mutants | killed | equivalent | survived | score |", "|---|---|---|---|---|---|"]
    for module, count in counts.items():
        judged = count["killed"] + count["survived"]
        share = f"{count['killed'] / judged:.1%}" if judged else "-"
        numbers = (count.total(), count["killed"], count["equivalent"], count["survived"], share)
        rows.append(f"| {module} | {' | '.join(map(str, numbers))} |")
        survivors = OUT / "survivors" / f"{module}.md"
        survivors.parent.mkdir(exist_ok=True)
        if module != "all":
            survivors.write_text(
                f"# Mutants of {REMEDIES}/{module}.py that no guard fails for\n\n" + "\n".join(living[module])
            )
    late = sum("MutantTakesTooLong" in one["why"] for runs in tried.values() for one in runs)
    ended = sum(one["why"] == ENDED for runs in tried.values() for one in runs)
    how = f"Of the killed {late} took too long and {ended} ended the process. {seconds / 60:.0f} minutes."
    text = "\n".join([*rows, "", how, *notes])
    (OUT / "score.md").write_text(text + "\n")
    print(f"\n{text}\nSurvivors: {OUT / 'survivors'}")
    return int(bool(notes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
