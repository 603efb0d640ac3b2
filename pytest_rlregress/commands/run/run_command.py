"""``rlregress run``: run the tests on several kinds of hardware of a Ray cluster at once."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.run import cluster, results
from pytest_rlregress.commands.run.cluster import ClusterError, Job
from pytest_rlregress.hardware.profiles import HardwareError, load_profiles
from pytest_rlregress.util import arguments
from pytest_rlregress.util.files import check_url

_MANUAL = """\
examples:
  rlregress run --hw=h100,h200,h20 --ray-address http://head:8265 --record-dir records
  rlregress run --hw=h100 --record-dir records -- -k batch --rl-strict
  rlregress run --hw=h100,mine --hardware profiles --working-dir . --record-dir records -- tests/hardware

For each hardware Ray gets one job, which runs pytest --hw=HARDWARE ARGS on a node with that card: in an empty folder,
or in the copy of --working-dir. The nodes need the harness in their environment; they need no shared file system: the
records come back through the jobs' logs, or go to the storage that --record-dir names (s3://bucket/nightly). A job
waits until the card is free.

Exit codes, of the worst job: 0 all passed, 1 tests failed, 2 bad input or no node has the card, 3 a job of which the
result is not known. Ctrl-C stops the jobs.
"""
_ADDRESS = "http://127.0.0.1:8265"
#: Seconds between two looks at the jobs.
POLL_SECONDS = 5.0
#: Seconds for the jobs to end once they were stopped: Ray's, and some for its answer.
_LEAVE_SECONDS = cluster.KILL_SECONDS + 10
_INTERRUPTED = "stopped by Ctrl-C"


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "run",
        description="Run the tests on each hardware, as one job of a Ray cluster for each, and collect the records.",
        epilog=_MANUAL,
        formatter_class=arguments.ManualFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="-- ARGS", help="more arguments for pytest")
    parser.add_argument("--hw", type=_list, required=True, metavar="LIST", help="hardware profiles: h100,h200")
    parser.add_argument(
        "--record-dir",
        type=_records,
        required=True,
        metavar="DIR",
        help="where the records go: a folder here, or a URL",
    )
    ray = parser.add_argument_group("Ray")
    ray.add_argument(
        "--ray-address",
        type=_address,
        default=os.environ.get("RAY_API_SERVER_ADDRESS") or _ADDRESS,
        metavar="URL",
        help="of the cluster's dashboard (default: %(default)s; also: environment RAY_API_SERVER_ADDRESS)",
    )
    ray.add_argument("--gpus", type=arguments.count, default=1, metavar="N", help="GPUs for each job (default: 1)")
    ray.add_argument(
        "--wait", action="store_true", help="submit also what no node has now: nodes may come when asked for"
    )
    ray.add_argument(
        "--timeout",
        type=arguments.seconds,
        default=4 * 3600.0,
        metavar="SECONDS",
        help="stop the jobs that have not ended by then, waiting included (default: 14400)",
    )
    nodes = parser.add_argument_group("on the nodes")
    nodes.add_argument(
        "--working-dir", type=arguments.path, metavar="DIR", help="run in a copy of this folder, sent to the nodes"
    )
    nodes.add_argument("--python", default="python", metavar="PATH", help="with the harness (default: python)")
    nodes.add_argument(
        "--hardware",
        type=arguments.path,
        action="append",
        default=[],
        metavar="DIR",
        help="with hardware profiles of your own, which the nodes know by the ini value rlregress_hardware",
    )
    parser.set_defaults(run=run)


def _list(text: str) -> list[str]:
    found = list(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"{arguments.shorten(text)} names no hardware")
    return found


def _records(text: str) -> Path | str:
    if "://" not in text:
        return arguments.path(text)
    try:
        check_url(text)
    except ValueError as allowed:
        raise argparse.ArgumentTypeError(f"{arguments.shorten(text)} is not allowed. Allowed: {allowed}") from None
    return text.rstrip("/")


def _address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(
            f"{arguments.shorten(text)} is not the address of a dashboard, such as http://head:8265"
        )
    return text.rstrip("/")


def run(options: argparse.Namespace) -> int:
    """Run on all of them and print the results; returns the exit code."""
    try:
        jobs = _make_jobs(options)
        client = cluster.connect(options.ray_address)
        if not options.wait:
            _check_nodes(jobs, options.ray_address)
    except (HardwareError, ClusterError) as error:
        print(f"rlregress run: {error}", file=sys.stderr)
        return results.UNKNOWN if isinstance(error, ClusterError) else results.USAGE
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        _run(client, jobs, options)
    except KeyboardInterrupt:
        left = " ".join(job.id for job in jobs if job.submitted and not job.has_ended)
        print(f"left; these may still run, ray job stop --address {options.ray_address} JOB ends one: {left}")
        return 130
    for job in jobs:
        results.finish(job, options.record_dir, f"ray job logs --address {options.ray_address} {job.id}")
    print(results.table(jobs), flush=True)
    return 130 if any(job.stopped == _INTERRUPTED for job in jobs) else max(job.code for job in jobs)


def _make_jobs(options: argparse.Namespace) -> list[Job]:
    """Return a job for each hardware.

    Raises:
        HardwareError: A profile or a folder isn't there.
    """
    profiles = load_profiles(options.hardware)
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    jobs = []
    for hardware in options.hw:
        if hardware not in profiles:
            raise HardwareError(
                f"--hw={hardware} isn't a hardware profile. Allowed: {', '.join(profiles)}, those in the folders of "
                "--hardware."
            )
        needs = cluster.needs_of(profiles[hardware], options.gpus)
        jobs.append(Job(hardware, needs, f"rlregress-{hardware}-{moment}-{secrets.token_hex(3)}"))
    if isinstance(options.record_dir, Path):
        try:
            options.record_dir.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=options.record_dir).close()
        except OSError as error:
            where = f"no record can be written to {options.record_dir}: {error.strerror}"
            raise HardwareError(f"--record-dir: {where}.") from None
    if options.working_dir and not options.working_dir.is_dir():
        raise HardwareError(f"--working-dir: {options.working_dir} isn't a folder.")
    return jobs


def _check_nodes(jobs: Sequence[Job], address: str) -> None:
    """Raise an error if the cluster as it is can never run one of the jobs."""
    nodes = cluster.list_nodes(address)
    without = [job for job in jobs if not any(cluster.fits(job.needs, node) for node in nodes)]
    if without:
        lacking = ", none ".join(f"{cluster.describe_needs(job.needs)} for --hw={job.hardware}" for job in without)
        raise HardwareError(
            f"{address}: no node has {lacking}; there are {cluster.describe_nodes(nodes)}. "
            "--wait submits nevertheless, for nodes that come when they are asked for."
        )


def _run(client: Any, jobs: Sequence[Job], options: argparse.Namespace) -> None:
    """Submit and follow the jobs until all have ended, or been stopped.

    Raises:
        KeyboardInterrupt: The second one: it was not waited for their end.
    """
    url = options.record_dir if isinstance(options.record_dir, str) else ""
    try:
        for job in jobs:
            job.submitted = time.monotonic()
            try:
                cluster.submit(client, job, options.words, options.python, options.working_dir, url)
            except ClusterError as error:
                job.submitted, job.message, job.has_ended = 0, str(error), True
                job.say(str(error))
            else:
                job.say(f"job {job.id} asks for {cluster.describe_needs(job.needs)}")
        _follow(client, jobs, options.timeout)
        stopped = f"stopped after {options.timeout:g} s"
    except KeyboardInterrupt:
        stopped = _INTERRUPTED
    left = [job for job in jobs if not job.has_ended]
    if not left:
        return
    for job in left:
        job.stopped = stopped
        if job.submitted:
            job.poll(client)
            try:
                client.stop_job(job.id)
            except Exception as error:
                job.say(f"could not be stopped: {cluster.last_line(error)}")
        job.has_ended |= job.status == "PENDING"
    print(f"{stopped}: {len(left)} of {len(jobs)} jobs; Ctrl-C leaves without waiting for their end", flush=True)
    _follow(client, left, _LEAVE_SECONDS)


def _follow(client: Any, jobs: Sequence[Job], seconds: float) -> None:
    """Print what the jobs print until all have ended, no longer than that."""
    until = time.monotonic() + seconds
    while (left := [job for job in jobs if not job.has_ended]) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        for job in left:
            job.poll(client)
