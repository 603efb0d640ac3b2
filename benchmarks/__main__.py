"""Run every benchmark, or those named: ``python -m benchmarks [startup] [containment] [faults] [step] [diagnose]``."""

from __future__ import annotations

import sys

from benchmarks import containment, diagnose, faults, startup, step

ALL = {
    "startup": startup.main,
    "containment": containment.main,
    "faults": faults.main,
    "step": step.main,
    "diagnose": diagnose.main,
}

unknown = [name for name in sys.argv[1:] if name not in ALL]
if unknown:
    sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}")
for name in sys.argv[1:] or ALL:
    ALL[name]()
