"""Run every benchmark, or those named: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import sys

from benchmarks import bisect, containment, diagnose, faults, history, page, startup, step

ALL = {
    "startup": startup.main,
    "containment": containment.main,
    "faults": faults.main,
    "step": step.main,
    "diagnose": diagnose.main,
    "bisect": bisect.main,
    "history": history.main,
    "page": page.main,
}

unknown = [name for name in sys.argv[1:] if name not in ALL]
if unknown:
    sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}")
for name in sys.argv[1:] or ALL:
    ALL[name]()
