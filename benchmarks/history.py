"""Opening the history of a thousand records: cold, warm with one new record, and with an index from elsewhere."""

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
from pytest_rlregress.report.history.store import open_history
begun = time.process_time()
history = open_history([Path(sys.argv[1])], say=lambda text: None)
opened = time.process_time()
points = sum(len(points) for platform in history.platforms for points in history.timelines(platform).values())
lined = time.process_time()
from benchmarks.measure import peak_mib
print(json.dumps({
    "parsed": history.parsed, "runs": len(history.runs), "points": points, "open": opened - begun,
    "timelines": lined - opened, "mib": peak_mib(),
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
        cold = _opened(folder)
        kept = paths[-1].read_text(encoding="utf-8")
        identity = json.loads(kept)["reportId"]
        (folder / "new.json").write_text(kept.replace(identity, identity[::-1]), encoding="utf-8")
        warm = _opened(folder)
        for path in folder.glob("*.json"):
            path.touch()
        touched = _opened(folder)
        index = next(folder.glob(".*.sqlite")).stat().st_size
    assert [one["parsed"] for one in (cold, warm, touched)] == [len(paths), 1, 0]
    assert warm["runs"] == len(paths) + 1
    print(f"\nA history of {len(paths)} records with {TESTS} tests each, {size / 1e6:.0f} MB, time of one core:")
    print(f"  to parse them as JSON              {parsing:6.2f} s")
    print(f"  to open it without an index        {cold['open']:6.2f} s     {cold['open'] / parsing:.1f} times that")
    print(f"  with one of these files, touched   {touched['open']:6.2f} s     as after a download")
    print(f"  with one, and one new record       {warm['open']:6.2f} s")
    print(f"  the timelines of every platform        {warm['timelines']:6.2f} s     {warm['points']} results")
    print(f"  the last two together              {warm['open'] + warm['timelines']:6.2f} s     (wanted: at most 2)")
    print(
        f"  memory at most                     {cold['mib']:6.0f} MiB   and {index / 1e6:.0f} MB on disk for the index"
    )


def _opened(folder: Path) -> dict[str, float]:
    done = measure.run([sys.executable, "-c", SCRIPT, folder])
    if done.code:
        sys.exit(done.err)
    found: dict[str, float] = json.loads(done.out)
    return found
