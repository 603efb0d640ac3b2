"""Runs the harness on complete stacks of other times, and keeps what came out: ``make stacks``.

Each lock in requirements/stacks/ is built in an environment of its own below .stacks/; the harness goes in as a wheel,
and runs from another folder, as a user's would. A run leaves docs/stacks.md, and a short record beside the lock: a JSON
object, a line a side, ``"mask-length-drift guards": ["held", ""]``, with the gravest verdict and why. The checks of
components are in it too, ``"vllm-engine component": ["passed", ""]``, and any other test under its own name, where it
failed. ``"tests judged"`` says how many gave a verdict of those that can run there, and which releases could not be
driven by the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import normal_numbers
import pages
import stack_locks
from building import CHECKOUT, Unbuildable, make_environment, uv
from short_records import JUDGED, count_judged, read_record, shorten, write_record

from pytest_rlregress.failures import catalogue
from pytest_rlregress.records import reader
from pytest_rlregress.records.record_types import RecordedTest, Results

ENVIRONMENTS = CHECKOUT / ".stacks"
LIMIT_SECONDS = 7200
# Of drawn releases that nothing satisfies together another set is drawn.
_DRAWS = 5


def main(arguments: Sequence[str]) -> int:
    """``run`` or ``lock`` the stacks named, or all; 1 where one could not be built or did not run to its end.

    A failure's id among the names runs the tests of that failure alone, and keeps all else that the record has; the
    tests that gave a verdict are counted again, where this machine has the whole run.
    ``draw SEED`` runs a stack that nobody chose, and keeps its lock and record below .stacks/drawn.
    """
    known = {request.name: request for request in stack_locks.REQUESTS}
    step, *names = arguments or [""]
    if step == "run" and names[:1] == ["draw"]:
        results = [run_drawn(seed) for seed in names[1:]]
        return int(not all(results))
    documented = catalogue.load([catalogue.SHIPPED])
    failures = [name for name in names if name in documented]
    chosen = [name for name in names if name not in failures]
    if step not in ("run", "lock") or not set(chosen) <= known.keys():
        sys.exit(f"stacks.py run|lock [NAME …] [FAILURE …]; the stacks are {', '.join(known)}")
    chosen = chosen or list(known)
    if step == "run":
        results = [run(name, failures) for name in chosen]
        return int(not all(results))
    for name in chosen:
        stack_locks.path(name).write_text(stack_locks.resolve(known[name]), encoding="utf-8")
    return 0


def run(name: str, failures: Sequence[str] = ()) -> bool:
    """Run a stack, keep a short record, write the pages; return whether the run came to its end."""
    done = run_and_keep(stack_locks.path(name), failures)
    if done:
        pages.write()
    return done


def run_drawn(seed: str) -> bool:
    """Draw a stack, run it, keep its lock and its record below .stacks; return whether the run came to its end."""
    lock_file = ENVIRONMENTS / "drawn" / f"drawn-{seed}.txt"
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    if not lock_file.exists():
        drawn = _resolve_drawn(seed)
        if drawn is None:
            return False
        lock_file.write_text(drawn, encoding="utf-8")
    return run_and_keep(lock_file)


def _resolve_drawn(seed: str) -> str | None:
    """Return the lock of the first stack drawn by a seed, and then by ``SEED-2`` and so on, that can be resolved."""
    for again in (seed, *(f"{seed}-{number}" for number in range(2, _DRAWS + 1))):
        try:
            return stack_locks.resolve(stack_locks.draw(again))
        except Unbuildable as error:
            print(f"drawn-{again}: {error}", flush=True)
    return None


def run_and_keep(lock_file: Path, failures: Sequence[str] = ()) -> bool:
    """Run a stack and keep a short record beside its lock; return whether the run came to its end.

    Args:
        lock_file: The record is beside it, with the suffix ``.json``.
        failures: Runs the tests of these alone, and keeps what the record has of others.
    """
    begun = time.monotonic()
    path = lock_file.with_suffix(".json")
    try:
        tests = read_complete(run_lock(lock_file, failures))
    except (Unbuildable, ValueError) as error:
        print(f"{lock_file.stem}: {error}", flush=True)
        return False
    record = shorten(tests)
    if failures:
        sides = {key: result for key, result in record.items() if _is_of(key, failures)}
        others = {key: result for key, result in read_record(path).items() if not _is_of(key, failures)}
        all_tests = replace_rerun(_read_runs(lock_file.stem))
        counted = {JUDGED: count_judged(all_tests)} if all_tests else {}
        record = dict(sorted({**others, **sides, **counted}.items()))
    elif lock_file.parent == stack_locks.LOCKS:  # not of a drawn stack
        normal_numbers.keep(tests, lock_file.stem)
    write_record(path, record)
    print(f"{lock_file.stem}: {summarize(tests)}; {time.monotonic() - begun:.0f} s", flush=True)
    for key, result in pages.select_bad(record).items():
        print(f"  {key} {result.word}: {result.note}", flush=True)
    return True


def _is_of(key: str, failures: Sequence[str]) -> bool:
    """Return whether a record's key is a side of one of these failures, or a test in the folder of one."""
    folders = key.partition("::")[0].split("/")
    return key.partition(" ")[0] in failures or any(failure.replace("-", "_") in folders for failure in failures)


def _read_runs(name: str) -> Iterator[Results]:
    """Read the runs of a stack on this machine that came to their end, the first one first."""
    for path in sorted((ENVIRONMENTS / "records" / name).glob("*.json")):
        results = reader.read(path).results
        if results.extra.state == "complete":
            yield results


def replace_rerun(runs: Iterable[Results]) -> list[RecordedTest]:
    """Return the tests of the last whole run, those of failures that ran alone since as they came out then.

    None without a whole run.
    """
    found: list[RecordedTest] = []
    for results in runs:
        if not results.extra.run.narrowing:
            found = results.tests
            continue
        again = {test.extra.failure for test in results.tests} - {""}
        rerun = [test for test in results.tests if test.extra.failure]
        found = [test for test in found if test.extra.failure not in again] + (rerun if found else [])
    return found


def summarize(tests: Sequence[RecordedTest]) -> str:
    """Count tests by verdict, and say which share of those that can run here gave one."""
    words = Counter(test.word for test in tests if test.extra.failure)
    said = ", ".join(f"{count} {word}" for word, count in words.most_common())
    judged = count_judged(tests)
    return f"{said}; judged {judged.word} ({judged.note})"


def run_lock(lock_file: Path, failures: Sequence[str] = ()) -> Path:
    """Build the environment of a lock and run scenarios in it, its output in a log beside it; return the record.

    ``failures`` are those whose tests run; none: all.

    Raises:
        Unbuildable: uv said why.
        ValueError: The run did not come to its end.
    """
    python = build(lock_file)
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLREGRESS_", "UV_"))}
    activated = {**outer, "PATH": os.pathsep.join([str(python.parent), outer["PATH"]])}
    log = ENVIRONMENTS / f"{lock_file.stem}.log"
    with tempfile.TemporaryDirectory() as folder, log.open("w") as output:
        command = [str(python), "-m", "pytest", "-n2", "--hw=cpu", "--rl-long", "--rl-record-dir=records"]
        command += [f"--rl-failure={failure}" for failure in failures]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=folder, env=activated, stdout=output, stderr=output, timeout=LIMIT_SECONDS)
        records = list(Path(folder, "records").glob("*.json"))
        if len(records) != 1:
            raise ValueError(f"no record, see {log}")
        kept = ENVIRONMENTS / "records" / lock_file.stem
        kept.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(records[0], kept))


def read_complete(path: Path) -> list[RecordedTest]:
    """Return the tests of a run's record.

    Raises:
        RecordError: The file isn't a record.
        ValueError: The run did not end by itself.
    """
    results = reader.read(path).results
    if results.extra.state != "complete":
        raise ValueError(f"the run is {results.extra.state}")
    return results.tests


def build(lock_file: Path) -> Path:
    """Return the interpreter of the environment of a lock, built where it is not there, with this checkout as a wheel.

    Raises:
        Unbuildable: uv said why.
    """
    folder, text = ENVIRONMENTS / lock_file.stem, lock_file.read_text(encoding="utf-8")
    python, mark = folder / "bin" / "python", folder / lock_file.name
    if not mark.exists() or mark.read_text(encoding="utf-8") != text:
        make_environment(folder, stack_locks.PYTHON)
        # A lock of public versions only is what an index has: a build for CPUs beside it would be another one.
        arguments = ("--python", python, "--compile-bytecode", "--no-deps", "--requirements", lock_file)
        uv("pip", "install", *arguments, find_links="+" in text)
        mark.write_text(text, encoding="utf-8")
    wheels = folder / "wheels"  # of its own: another stack may be made at the same time
    shutil.rmtree(wheels, ignore_errors=True)
    uv("build", "--wheel", "--out-dir", wheels, CHECKOUT)
    # With what it requires: the lock has all of it, so nothing else moves.
    uv("pip", "install", "--python", python, "--reinstall-package", "pytest-rlregress", *wheels.glob("*.whl"))
    return python


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
