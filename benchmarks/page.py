"""A thousand records: how long opening them takes, and the command that makes their page; how soon a browser has it."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure

PLATFORMS = ("cpu", "h100", "h200", "h20")
NIGHTS, TESTS = 250, 330
OPEN = """
import json, sys, time
from pathlib import Path
from pytest_rlregress.records.history import open_history
begun = time.process_time()
history = open_history([Path(sys.argv[1])])
opened = time.process_time()
points = sum(len(points) for tests in history.timelines.values() for points in tests.values())
lined = time.process_time()
from benchmarks.measure import peak_mib
print(json.dumps({"points": points, "open": opened - begun, "timelines": lined - opened, "mib": peak_mib()}))
"""


def main() -> None:
    """Make the records, open them, write their page, open it, print what that took."""
    sys.path.insert(0, str(measure.ROOT / "tests" / "support"))
    import histories

    guards = [case.name for case in histories.cases(TESTS) if case.side == "guards"]
    events = [histories.Event("upgrade", night, "vllm", f"0.31.{night}") for night in range(5, NIGHTS, 12)]
    events += [histories.Event("no run", night) for night in range(9, NIGHTS, 40)]
    events += [histories.Event("bad", NIGHTS - 3, test, "crashed", platform="h100") for test in guards[:40]]
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name, "records"), Path(name, "report.html")
        paths = histories.make(folder, nights=NIGHTS, platforms=PLATFORMS, tests=TESTS, events=events)
        begun = time.process_time()
        for path in paths:
            json.loads(path.read_bytes())
        parsing = time.process_time() - begun
        found = json.loads(_run([sys.executable, "-c", OPEN, folder]).out)
        both = found["open"] + found["timelines"]
        print(f"\nA history of {len(paths)} records with {TESTS} tests each, time of one core:")
        print(f"  to parse them as JSON              {parsing:6.2f} s")
        print(
            f"  to open it                         {found['open']:6.2f} s     {found['open'] / parsing:.1f} times that"
        )
        print(f"  the timelines of every platform    {found['timelines']:6.2f} s     {found['points']} results")
        print(f"  the last two together              {both:6.2f} s     (wanted: at most 2)")
        print(f"  memory at most                     {found['mib']:6.0f} MiB")

        done = _run([sys.executable, "-m", "pytest_rlregress.cli", "report", folder, "--output", page])
        print("\nTheir page, in a fresh process:")
        print(f"  took    {done.seconds:6.1f} s, of a core's time {done.core_seconds:.1f} s     (wanted: at most 5 s)")
        print(f"  size    {page.stat().st_size / 1e6:6.2f} MB                          (wanted: under 3 MB)")
        if shutil.which("chromium"):
            print(f"  opened by chromium in {_open(page):6.1f} s")


def _run(command: list[str | Path]) -> measure.Ran:
    done = measure.run(command)
    if done.code:
        sys.exit(done.err)
    return done


def _open(page: Path) -> float:
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        tab = browser.new_page()
        begun = time.perf_counter()
        tab.goto(page.as_uri())
        found = time.perf_counter() - begun
        browser.close()
    return found
