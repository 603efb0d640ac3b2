"""Run every benchmark, or those named: ``python -m benchmarks [NAME ...]``; of several each in its own process."""

from __future__ import annotations

import subprocess
import sys

from benchmarks import audit, bisect, containment, diagnose, faults, history, page, startup, step, upgrade

ALL = {
    "startup": startup.main,
    "containment": containment.main,
    "faults": faults.main,
    "step": step.main,
    "diagnose": diagnose.main,
    "audit": audit.main,
    "bisect": bisect.main,
    "upgrade": upgrade.main,
    "history": history.main,
    "page": page.main,
}

names = sys.argv[1:] or list(ALL)
unknown = [name for name in names if name not in ALL]
if unknown:
    sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}")
if len(names) == 1:
    ALL[names[0]]()
else:
    for (
        name
    ) in names:  # what one leaves behind, such as torch's threads and memory, must not be in the next one's figures
        code = subprocess.run([sys.executable, "-m", "benchmarks", name]).returncode
        if code:
            sys.exit(code)
