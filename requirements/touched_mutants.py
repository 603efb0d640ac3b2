"""Runs the mutants of the failures that a change touches: ``make test-mutants``.

A failure is touched by what is in its folder; all failures of an area are by what they share and by their remedies. One
without ``mutants.py`` has nothing to run. A change of what all areas share touches none: ``make test-nightly`` runs all
mutants.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
#: Of so many areas the mutants fit into the time of a change; more are left to the nightly.
MOST = 2
_OWN = re.compile(r"(?:scenarios|pytest_rlregress/remedies)/(?P<area>[a-z_]+)(?:/(?P<failure>[a-z0-9_]+)/)?")


def main(words: Sequence[str]) -> int:
    """Run the mutants of the areas and ids named, or else touched; 0 if there are none or too many of them."""
    chosen = list(words) or find_touched(changed_files())
    areas = {word.partition("/")[0] for word in chosen}
    if not chosen or (len(areas) > MOST and not words):
        why = (
            f"more than {MOST} areas differ ({', '.join(sorted(areas))})"
            if chosen
            else "no failure with mutants differs"
        )
        print(f"0 passed: {why}; make test-nightly runs all mutants")
        return 0
    print(f"mutants of {', '.join(chosen)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "tests/stack/scenarios/test_mutants.py", "-m", "nightly"]
    return subprocess.run([*command, "-k", " or ".join(chosen)], cwd=CHECKOUT).returncode


def changed_files() -> list[str]:
    """Return the files that differ from the merge base with main, or on main itself from the commit before."""
    git = ["git", "-C", str(CHECKOUT)]
    for base in ("origin/main", "main", "HEAD~1"):
        found = subprocess.run([*git, "diff", "--name-only", f"{base}...HEAD"], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout:
            return found.stdout.splitlines()
    return []


def find_touched(files: Iterable[str]) -> list[str]:
    """Return what of that has mutants, sorted: areas, ``batch/``, and failures of others, ``batch/pad-is-eos``."""
    with_mutants = [path.parent for path in (CHECKOUT / "scenarios").glob("*/*/mutants.py")]
    touched = set()
    for own in filter(None, map(_OWN.match, files)):
        for folder in with_mutants:
            area = folder.parent.name
            if own["area"].startswith(area) and own["failure"] in (None, folder.name):
                # a module of remedies may be named for a part of its area
                touched.add(f"{area}/" + (own["failure"] or "").replace("_", "-"))
    return sorted(word for word in touched if word.endswith("/") or f"{word.partition('/')[0]}/" not in touched)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
