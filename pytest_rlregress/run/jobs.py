"""A run on several kinds of hardware: its jobs side by side, what came back from each, and the page of them all."""

from __future__ import annotations

import argparse
import datetime
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytest_rlregress.hardware.profiles import HardwareError, load_profiles
from pytest_rlregress.report.judgement.facts import night_of
from pytest_rlregress.run import cluster, job_log, results
from pytest_rlregress.run.cluster import Ask, ClusterError
from pytest_rlregress.run.results import UNKNOWN, USAGE

Heard = queue.SimpleQueue[Any]  # pairs of a HardwareJob and a line of its output or its End

_INTERRUPTED = "stopped by Ctrl-C"
#: Seconds for the jobs to end once they were stopped: Ray's, and some for its answer.
_LEAVE_SECONDS = cluster.KILL_SECONDS + 10


@dataclass
class HardwareJob:
    """One hardware of the run, and what is known of its job by now."""

    asked: Ask
    job: str
    begun: float = 0
    followed: bool = False
    stopped: str = ""
    end: job_log.End | None = None


def run(options: argparse.Namespace) -> int:
    """Run on all of them, print what came of it; returns the exit code."""
    try:
        asks = _asks(options)
    except HardwareError as error:
        return _refuse(str(error), USAGE)
    if problem := _unusable(options):
        return _refuse(problem, USAGE)
    try:
        client = cluster.connect(options.ray_address)
        if not options.wait and (refusal := _refusal(asks, cluster.nodes(options.ray_address))):
            return _refuse(f"{options.ray_address}: {refusal}", USAGE)
    except ClusterError as error:
        return _refuse(str(error), UNKNOWN)
    platforms = [HardwareJob(asked, cluster.name(asked)) for asked in asks]
    night = night_of(time.time())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        _run(client, platforms, options)
    except KeyboardInterrupt:
        left = " ".join(platform.job for platform in platforms if platform.begun and not platform.end)
        print(f"left; these may still run, ray job stop --address {options.ray_address} JOB ends one: {left}")
        return 130
    outcomes = [_outcome(platform, options) for platform in platforms]
    print(results.table(outcomes), flush=True)
    if any(platform.stopped == _INTERRUPTED for platform in platforms):
        return 130
    if options.output:
        _page(options, night)
    return max(outcome.code for outcome in outcomes)


def _refuse(why: str, code: int) -> int:
    print(f"rlregress run: {why}", file=sys.stderr)
    return code


def _asks(options: argparse.Namespace) -> list[Ask]:
    profiles = load_profiles(options.hardware)
    for hardware in options.hw:
        if hardware not in profiles:
            raise HardwareError(
                f"--hw={hardware} is no hardware profile. Allowed: {', '.join(profiles)}, and those in the folders of "
                "--hardware."
            )
    return [cluster.ask(profiles[hardware], options.gpus) for hardware in options.hw]


def _unusable(options: argparse.Namespace) -> str:
    """What is wrong with a folder that was named; "" for nothing."""
    try:
        options.record_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=options.record_dir).close()
    except OSError as error:
        return f"--record-dir: no record can be written to {options.record_dir}: {error.strerror}."
    folders = {"--working-dir": options.working_dir, "--output": options.output and options.output.parent}
    missing = (f"{flag}: {folder} is no folder." for flag, folder in folders.items() if folder and not folder.is_dir())
    return next(missing, "")


def _refusal(asks: Sequence[Ask], nodes: Sequence[Mapping[str, float]]) -> str:
    """Why the cluster can never run one of them as it is; "" if it can."""
    without = [asked for asked in asks if not any(asked.fits(node) for node in nodes)]
    if not without:
        return ""
    wanted = ", none ".join(f"{asked.text} for --hw={asked.hardware}" for asked in without)
    return (
        f"no node has {wanted}; there are {cluster.inventory(nodes)}. "
        "--wait submits nevertheless, for nodes that come when they are asked for."
    )


def _run(client: Any, platforms: Sequence[HardwareJob], options: argparse.Namespace) -> None:
    """Submit and follow the jobs until all have ended, or been stopped.

    Raises:
        KeyboardInterrupt: The second one: it was not waited for their end.
    """
    heard: Heard = queue.SimpleQueue()
    leaving = threading.Event()
    try:
        for platform in platforms:
            platform.begun = time.monotonic()
            try:
                cluster.submit(client, platform.job, platform.asked, options.words, options.python, options.working_dir)
            except ClusterError as error:
                platform.end = job_log.End("REFUSED", str(error))
                _say(platform, str(error))
                continue
            _say(platform, f"job {platform.job} asks for {platform.asked.text}")
            _follow(client, platform, heard, leaving)
        stopped = "" if _listen(platforms, heard, options.timeout) else f"stopped after {options.timeout:g} s"
    except KeyboardInterrupt:
        stopped = _INTERRUPTED
    left = [platform for platform in platforms if not platform.end]
    if not left:
        return
    print(f"{stopped}: {len(left)} of {len(platforms)} jobs; Ctrl-C leaves without waiting for their end", flush=True)
    leaving.set()
    for platform in left:
        platform.stopped = stopped
        if not platform.begun:
            platform.end = job_log.End("REFUSED", "not submitted")
            continue
        threading.Thread(target=_stop, args=[client, platform, heard], daemon=True).start()
        if not platform.followed:  # it was just being submitted
            _follow(client, platform, heard, leaving)
    _listen(left, heard, _LEAVE_SECONDS)


def _follow(client: Any, platform: HardwareJob, heard: Heard, leaving: threading.Event) -> None:
    def say(line: str) -> None:
        heard.put((platform, line))

    def follow() -> None:
        heard.put((platform, job_log.follow(client, platform.job, platform.asked.text, say, leaving)))

    platform.followed = True
    threading.Thread(target=follow, daemon=True).start()  # it may wait for an answer for ever


def _stop(client: Any, platform: HardwareJob, heard: Heard) -> None:
    try:
        client.stop_job(platform.job)
    except Exception as error:
        heard.put((platform, f"could not be stopped: {cluster.brief(error)}"))


def _listen(platforms: Sequence[HardwareJob], heard: Heard, seconds: float) -> bool:
    """Say what is heard until all have ended, no longer than that; whether they have."""
    until = time.monotonic() + seconds
    while any(not platform.end for platform in platforms) and time.monotonic() < until:
        with suppress(queue.Empty):
            platform, what = heard.get(timeout=0.5)
            if isinstance(what, job_log.End):
                platform.end = what
            else:
                _say(platform, what)
    return all(platform.end for platform in platforms)


def _say(platform: HardwareJob, line: str) -> None:
    print(f"[{platform.asked.hardware}] {line}", flush=True)


def _outcome(platform: HardwareJob, options: argparse.Namespace) -> results.JobOutcome:
    end = platform.end or job_log.End("", f"no word of its end in {_LEAVE_SECONDS} s")
    seconds = time.monotonic() - platform.begun if platform.begun else 0
    place = results.RecordFolder(platform.asked.hardware, platform.job, options.record_dir, options.ray_address)
    return results.outcome(place, end, seconds, platform.stopped)


def _page(options: argparse.Namespace, night: datetime.date) -> None:
    """One page of tonight, from these records and those that the folder already had."""
    from pytest_rlregress.report.history.record_files import HistoryError
    from pytest_rlregress.report.report_command import ReportError, write_page

    try:
        write_page([options.record_dir], options.output, date=night, expect=options.hw)
        print(f"page: {options.output}", flush=True)
    except (ReportError, HistoryError, OSError) as error:
        print(f"rlregress run: no page: {error}", file=sys.stderr)
