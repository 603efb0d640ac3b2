"""Run every benchmark, or those named, each in its own process: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

NAMES = ("startup", "containment", "faults", "step", "diagnose", "audit", "bisect", "moved", "upgrade", "page")

if unknown := [name for name in sys.argv[1:] if name not in NAMES]:
    sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
if len(sys.argv) == 2:
    import_module(f"benchmarks.{sys.argv[1]}").main()
else:
    for name in sys.argv[1:] or NAMES:  # what one leaves behind, such as torch's threads, is not in the next's figures
        subprocess.run([sys.executable, "-m", "benchmarks", name], check=True)
