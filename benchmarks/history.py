"""Opening the history of a thousand records."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure

PLATFORMS = ("cpu", "h100", "h200", "h20")
NIGHTS, TESTS = 250, 330
SCRIPT = """
import json, sys, time
from pathlib import Path
from pytest_rlregress.commands.report.history.store import open_history
begun = time.process_time()
history = open_history([Path(sys.argv[1])])
opened = time.process_time()
points = sum(len(points) for platform in history.platforms for points in history.timelines(platform).values())
lined = time.process_time()
from benchmarks.measure import peak_mib
print(json.dumps({
    "runs": len(history.runs), "points": points, "open": opened - begun, "timelines": lined - opened,
    "mib": peak_mib(),
}))
"""


def main() -> None:
    """Make the records, open them in fresh processes, print the times."""
    sys.path.insert(0, str(measure.ROOT / "tests"))
    import histories

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events = [histories.Event("upgrade", 100, "torch", "2.14.0"), histories.Event("driver", 200, "", "580.95.05")]
        paths = histories.make(folder, nights=NIGHTS, platforms=PLATFORMS, tests=TESTS, events=events)
        size = sum(path.stat().st_size for path in paths)
        begun = time.process_time()
        for path in paths:
            json.loads(path.read_bytes())
        parsing = time.process_time() - begun
        found = _opened(folder)
    assert found["runs"] == len(paths)
    both = found["open"] + found["timelines"]
    print(f"\nA history of {len(paths)} records with {TESTS} tests each, {size / 1e6:.0f} MB, time of one core:")
    print(f"  to parse them as JSON              {parsing:6.2f} s")
    print(f"  to open it                         {found['open']:6.2f} s     {found['open'] / parsing:.1f} times that")
    print(f"  the timelines of every platform    {found['timelines']:6.2f} s     {found['points']} results")
    print(f"  the last two together              {both:6.2f} s     (wanted: at most 2)")
    print(f"  memory at most                     {found['mib']:6.0f} MiB")


def _opened(folder: Path) -> dict[str, float]:
    done = measure.run([sys.executable, "-c", SCRIPT, folder])
    if done.code:
        sys.exit(done.err)
    found: dict[str, float] = json.loads(done.out)
    return found
