"""Run the jobs of several kinds of hardware side by side, and collect what comes back."""

from __future__ import annotations

import argparse
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

from pytest_rlregress.commands.run import cluster, job_log, results
from pytest_rlregress.commands.run.cluster import ClusterError, JobResources
from pytest_rlregress.commands.run.results import UNKNOWN, USAGE
from pytest_rlregress.hardware.profiles import HardwareError, load_profiles

#: Pairs of a job and a line of its output, or its JobEnd.
Events = queue.SimpleQueue[Any]

_INTERRUPTED = "stopped by Ctrl-C"
#: Seconds for the jobs to end once they were stopped: Ray's, and some for its answer.
_LEAVE_SECONDS = cluster.KILL_SECONDS + 10


@dataclass
class HardwareJob:
    """The job of one hardware, and what is known of it by now.

    Attributes:
        submitted: When, by the monotonic clock; 0 before.
        followed: Whether a thread reads its log.
        stopped: Why it was stopped, if it was.
    """

    resources: JobResources
    id: str
    submitted: float = 0
    followed: bool = False
    stopped: str = ""
    end: job_log.JobEnd | None = None


def run(options: argparse.Namespace) -> int:
    """Run on all of them and print the results; returns the exit code."""
    try:
        wanted = _resources(options)
    except HardwareError as error:
        return _refuse(str(error), USAGE)
    if problem := _unusable(options):
        return _refuse(problem, USAGE)
    try:
        client = cluster.connect(options.ray_address)
        if not options.wait and (refusal := _why_no_node(wanted, cluster.nodes(options.ray_address))):
            return _refuse(f"{options.ray_address}: {refusal}", USAGE)
    except ClusterError as error:
        return _refuse(str(error), UNKNOWN)
    jobs = [HardwareJob(resources, cluster.new_id(resources)) for resources in wanted]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        _run(client, jobs, options)
    except KeyboardInterrupt:
        left = " ".join(job.id for job in jobs if job.submitted and not job.end)
        print(f"left; these may still run, ray job stop --address {options.ray_address} JOB ends one: {left}")
        return 130
    outcomes = [_job_outcome(job, options) for job in jobs]
    print(results.table(outcomes), flush=True)
    if any(job.stopped == _INTERRUPTED for job in jobs):
        return 130
    return max(outcome.code for outcome in outcomes)


def _refuse(why: str, code: int) -> int:
    print(f"rlregress run: {why}", file=sys.stderr)
    return code


def _resources(options: argparse.Namespace) -> list[JobResources]:
    profiles = load_profiles(options.hardware)
    for hardware in options.hw:
        if hardware not in profiles:
            raise HardwareError(
                f"--hw={hardware} isn't a hardware profile. Allowed: {', '.join(profiles)}, those in the folders of "
                "--hardware."
            )
    return [cluster.resources_for(profiles[hardware], options.gpus) for hardware in options.hw]


def _unusable(options: argparse.Namespace) -> str:
    """Say what is wrong with a folder that was named; "" for nothing."""
    try:
        options.record_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=options.record_dir).close()
    except OSError as error:
        return f"--record-dir: no record can be written to {options.record_dir}: {error.strerror}."
    if options.working_dir and not options.working_dir.is_dir():
        return f"--working-dir: {options.working_dir} isn't a folder."
    return ""


def _why_no_node(wanted: Sequence[JobResources], nodes: Sequence[Mapping[str, float]]) -> str:
    """Say why the cluster as it is can never run one of them; "" if it can."""
    without = [one for one in wanted if not any(one.fits(node) for node in nodes)]
    if not without:
        return ""
    lacking = ", none ".join(f"{one} for --hw={one.hardware}" for one in without)
    return (
        f"no node has {lacking}; there are {cluster.describe(nodes)}. "
        "--wait submits nevertheless, for nodes that come when they are asked for."
    )


def _run(client: Any, jobs: Sequence[HardwareJob], options: argparse.Namespace) -> None:
    """Submit and follow the jobs until all have ended, or been stopped.

    Raises:
        KeyboardInterrupt: The second one: it was not waited for their end.
    """
    events: Events = queue.SimpleQueue()
    leaving = threading.Event()
    try:
        for job in jobs:
            job.submitted = time.monotonic()
            try:
                cluster.submit(client, job.id, job.resources, options.words, options.python, options.working_dir)
            except ClusterError as error:
                job.end = job_log.JobEnd("REFUSED", str(error))
                _print_line(job, str(error))
                continue
            _print_line(job, f"job {job.id} asks for {job.resources}")
            _follow(client, job, events, leaving)
        stopped = "" if _wait(jobs, events, options.timeout) else f"stopped after {options.timeout:g} s"
    except KeyboardInterrupt:
        stopped = _INTERRUPTED
    left = [job for job in jobs if not job.end]
    if not left:
        return
    print(f"{stopped}: {len(left)} of {len(jobs)} jobs; Ctrl-C leaves without waiting for their end", flush=True)
    leaving.set()
    for job in left:
        job.stopped = stopped
        if not job.submitted:
            job.end = job_log.JobEnd("REFUSED", "not submitted")
            continue
        threading.Thread(target=_stop, args=[client, job, events], daemon=True).start()
        if not job.followed:  # it was just being submitted
            _follow(client, job, events, leaving)
    _wait(left, events, _LEAVE_SECONDS)


def _follow(client: Any, job: HardwareJob, events: Events, leaving: threading.Event) -> None:
    def print_line(line: str) -> None:
        events.put((job, line))

    def follow() -> None:
        events.put((job, job_log.follow(client, job.id, str(job.resources), print_line, leaving)))

    job.followed = True
    threading.Thread(target=follow, daemon=True).start()  # it may wait for an answer for ever


def _stop(client: Any, job: HardwareJob, events: Events) -> None:
    try:
        client.stop_job(job.id)
    except Exception as error:
        events.put((job, f"could not be stopped: {cluster.last_line(error)}"))


def _wait(jobs: Sequence[HardwareJob], events: Events, seconds: float) -> bool:
    """Print what comes until all have ended, no longer than that; whether they have."""
    until = time.monotonic() + seconds
    while any(not job.end for job in jobs) and time.monotonic() < until:
        with suppress(queue.Empty):
            job, what = events.get(timeout=0.5)
            if isinstance(what, job_log.JobEnd):
                job.end = what
            else:
                _print_line(job, what)
    return all(job.end for job in jobs)


def _print_line(job: HardwareJob, line: str) -> None:
    print(f"[{job.resources.hardware}] {line}", flush=True)


def _job_outcome(job: HardwareJob, options: argparse.Namespace) -> results.JobOutcome:
    end = job.end or job_log.JobEnd("", f"no word of its end in {_LEAVE_SECONDS} s")
    seconds = time.monotonic() - job.submitted if job.submitted else 0
    logs = f"ray job logs --address {options.ray_address} {job.id}"
    return results.outcome(job.resources.hardware, end, seconds, options.record_dir, stopped=job.stopped, logs=logs)
