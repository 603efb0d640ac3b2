"""Runs the mutants of the scenario folders that a change touches: ``make test-mutants``.

A folder is touched by its scenarios, its remedies and its mutants. A change of what all folders share touches none:
``make test-nightly`` runs all mutants.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
#: Of so many folders the mutants fit into the time of a change; more are left to the nightly.
MOST = 2
_OWN = re.compile(r"(?:scenarios|pytest_rlregress/remedies|tests/mutants)/([a-z_]+)")


def main(folders: Sequence[str]) -> int:
    """Run the mutants of the folders named, or else touched; pytest's exit code, 0 if there are none or too many."""
    chosen = list(folders) or find_touched(changed_files())
    if not chosen or (len(chosen) > MOST and not folders):
        why = f"more than {MOST} folders differ ({', '.join(chosen)})" if chosen else "no scenario folder differs"
        print(f"0 passed: {why}; make test-nightly runs all mutants")
        return 0
    print(f"mutants of {', '.join(chosen)}", flush=True)
    words = " or ".join(f"{folder}/" for folder in chosen)
    command = [sys.executable, "-m", "pytest", "-q", "tests/stack/scenarios/test_mutants.py", "-k", words]
    return subprocess.run([*command, "-m", "nightly"], cwd=CHECKOUT).returncode


def changed_files() -> list[str]:
    """Return the files that differ from the merge base with main, or on main itself from the commit before."""
    git = ["git", "-C", str(CHECKOUT)]
    for base in ("origin/main", "main", "HEAD~1"):
        found = subprocess.run([*git, "diff", "--name-only", f"{base}...HEAD"], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout:
            return found.stdout.splitlines()
    return []


def find_touched(files: Iterable[str]) -> list[str]:
    """Return the scenario folders that these files belong to, sorted."""
    names = {found.group(1) for file in files if (found := _OWN.match(file))}
    folders = {path.parts[-3] for path in CHECKOUT.glob("scenarios/*/*/failure.toml")}
    return sorted(folder for folder in folders if any(name.startswith(folder) for name in names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
