"""Runs the harness on complete stacks of other times, and keeps what came out: ``make stacks``.

Each lock in requirements/stacks/ is built in an environment of its own below .stacks/; the harness goes in as a wheel,
and runs from another folder, as a user's would. A run leaves a short record beside the lock, and docs/stacks.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import stack_locks
import stack_records
import stacks_page
from building import CHECKOUT, Unbuildable, interpreter, table, uv
from stack_records import ShortRecord

from pytest_rlregress.failures import catalogue

ENVIRONMENTS = CHECKOUT / ".stacks"
LIMIT_SECONDS = 1800


def main(arguments: Sequence[str] | None = None) -> int:
    """Do with the stacks what is asked for; 1 where one could not be built or did not run to its end."""
    parser = argparse.ArgumentParser(prog="make stacks", description=__doc__)
    steps: dict[str, Callable[[list[str]], bool]] = {"run": run, "build": build_all, "lock": lock, "page": write_page}
    said = "; ".join(f"{name}: {step.__doc__}" for name, step in steps.items())
    parser.add_argument("step", choices=steps, help=said)
    names = [request.name for request in stack_locks.REQUESTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (default: all): {', '.join(names)}")
    said = "run these folders of scenarios only, and keep the rest of the records (more than once)"
    parser.add_argument("--only", action="append", default=[], metavar="FOLDER", help=said)
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(names):
        parser.error(f"no stack {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if unknown := [folder for folder in options.only if not (catalogue.SHIPPED / folder).is_dir()]:
        parser.error(f"no folder of scenarios {', '.join(unknown)}")
    if options.only and options.step != "run":
        parser.error("--only is for run")
    wanted = options.names or names
    return not (run(wanted, options.only) if options.step == "run" else steps[options.step](wanted))


def lock(names: list[str]) -> bool:
    """Resolve the locks again."""
    stack_locks.LOCKS.mkdir(exist_ok=True)
    for request in stack_locks.REQUESTS:
        if request.name in names:
            stack_locks.path(request.name).write_text(stack_locks.resolve(request), encoding="utf-8")
    return True


def build_all(names: list[str]) -> bool:
    """Build the environments that are not there yet."""
    for name in names:
        print(f"{name}: {build(stack_locks.path(name))}", flush=True)
    return True


def write_page(names: list[str]) -> bool:
    """Write docs/stacks.md from all records that are there."""
    (CHECKOUT / "docs" / "stacks.md").write_text(stacks_page.shipped(), encoding="utf-8")
    return True


def run(names: list[str], only: Sequence[str] = ()) -> bool:
    """Build the environments, run, keep a short record of each, write the page, print a table."""
    lines, whole = [], True
    for name in names:
        begun = time.monotonic()
        try:
            record = run_lock(stack_locks.path(name), only)
        except (Unbuildable, ValueError) as error:
            cells, whole = [str(error).strip().splitlines()[-1], ""], False
        else:
            if only:
                before = stack_records.read(stack_locks.path(name).with_suffix(".json"))
                record = stack_records.replaced(before, record, only)
            stack_records.write(stack_locks.path(name).with_suffix(".json"), record)
            cells = in_words(record)
        lines.append([name, *cells, f"{time.monotonic() - begun:.0f} s"])
        print(", ".join(lines[-1]), flush=True)
    write_page(names)
    print(*table([["stack", "verdicts", "bad", "time"], *lines]), sep="\n")
    return whole


def in_words(record: ShortRecord) -> list[str]:
    """Count each verdict, and name the keys of the bad ones."""
    counts = Counter(result.word for result in record.values())
    return [", ".join(f"{count} {word}" for word, count in counts.most_common()), "; ".join(stack_records.bad(record))]


def run_lock(lock_file: Path, only: Sequence[str] = ()) -> ShortRecord:
    """Build the environment of a lock and run all scenarios in it, or those folders; its output in a log beside it.

    Raises:
        Unbuildable: uv said why.
        ValueError: The run did not come to its end.
    """
    python = build(lock_file)
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLREGRESS_", "UV_"))}
    activated = {**outer, "PATH": os.pathsep.join([str(python.parent), outer["PATH"]])}
    log = ENVIRONMENTS / f"{lock_file.stem}.log"
    with tempfile.TemporaryDirectory() as folder, log.open("w") as output:
        command = [str(python), "-m", "pytest", "--hw=cpu", "--rl-long", "--rl-record-dir=records"]
        command += ["--pyargs", *(f"pytest_rlregress.scenarios.{folder}" for folder in only)] if only else []
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=folder, env=activated, stdout=output, stderr=output, timeout=LIMIT_SECONDS)
        records = list(Path(folder, "records").glob("*.json"))
        if len(records) != 1:
            raise ValueError(f"no record, see {log}")
        kept = ENVIRONMENTS / "records" / lock_file.stem
        kept.mkdir(parents=True, exist_ok=True)
        return stack_records.shorten(Path(shutil.copy(records[0], kept)))


def build(lock_file: Path) -> Path:
    """Return the interpreter of the environment of a lock, built where it is not there, with this checkout as a wheel.

    Raises:
        Unbuildable: uv said why.
    """
    folder, text = ENVIRONMENTS / lock_file.stem, lock_file.read_text(encoding="utf-8")
    python, mark = folder / "bin" / "python", folder / lock_file.name
    if not mark.exists() or mark.read_text(encoding="utf-8") != text:
        shutil.rmtree(folder, ignore_errors=True)
        uv("venv", "--python", interpreter(stack_locks.PYTHON), folder)
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
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
