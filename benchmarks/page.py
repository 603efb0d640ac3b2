"""The page of a thousand records: how long the command takes, what it weighs, how soon a browser has it."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure
from benchmarks.history import NIGHTS, PLATFORMS, TESTS


def main() -> None:
    """Make the records, write their page, open it, print what that took."""
    sys.path.insert(0, str(measure.ROOT / "tests"))
    import histories

    guards = [case.name for case in histories.cases(TESTS) if case.side == "guards"]
    events = [histories.Event("upgrade", night, "vllm", f"0.31.{night}") for night in range(5, NIGHTS, 12)]
    events += [histories.Event("no run", night) for night in range(9, NIGHTS, 40)]
    events += [histories.Event("bad", NIGHTS - 3, test, "crashed", platform="h100") for test in guards[:40]]
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name, "records"), Path(name, "report.html")
        count = len(histories.make(folder, nights=NIGHTS, platforms=PLATFORMS, tests=TESTS, events=events))
        seconds, core = _written(folder, page)
        size = page.stat().st_size
        print(f"\nThe page of {count} records with {TESTS} tests each, in a fresh process:")
        print(f"  took                    {seconds:6.1f} s, of a core's time {core:.1f} s     (wanted: at most 5 s)")
        print(f"  size                    {size / 1e6:6.2f} MB                          (wanted: under 3 MB)")
        if shutil.which("chromium"):
            print(f"  opened by chromium in   {_opened(page):6.1f} s")


def _written(folder: Path, page: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "pytest_rlregress.cli", "report", str(folder), "--output", str(page)]
    done = measure.run(command)
    if done.code:
        sys.exit(done.err)
    return done.seconds, done.core_seconds


def _opened(page: Path) -> float:
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
