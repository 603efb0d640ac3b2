"""Ask a Ray cluster which nodes it has, give it jobs and ask how they are, through its dashboard.

Needs Ray with its job client.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.run.job import MARK, STOP_SECONDS
from pytest_rlregress.hardware.profiles import HardwareError, Profile
from pytest_rlregress.util.text import plural

#: How much of the accelerator's type a job takes: a node has one of it, however many cards. What counts is the GPU.
_ACCELERATOR_SHARE = 0.001
#: Seconds after which Ray kills a job that it was told to stop.
KILL_SECONDS = STOP_SECONDS + 10
#: Seconds without an answer, after which a job is given up.
SILENCE_SECONDS = 60
#: Seconds after which a job that still waits is reported.
PENDING_SECONDS = 20
#: What every node has.
_COMMON = ("CPU", "memory", "object_store_memory")


class ClusterError(Exception):
    """The cluster does not answer, or will not take a job."""


@dataclass
class Job:
    """The job of one hardware, what is known of it by now, and how it ended.

    Attributes:
        hardware: The profile's id.
        needs: What it asks of a node, by Ray's names: ``accelerator_type:H100``, ``GPU``.
        submitted: When, by the monotonic clock; 0 before, and if Ray refused it.
        status: Ray's word for how it is; "" if the cluster does not answer any more.
        message: Ray's, or the error of the connection.
        node: Ray's id of the node; "" if it never came to one.
        host: The node's name, as far as it is known.
        log: All that it has printed.
        printed: How much of the log was printed here, in characters.
        has_ended: Whether nothing more is to come.
        stopped: Why it was stopped, if it was.
        words: How it ended.
        code: What that means, GOOD, FAILED, USAGE or UNKNOWN of ``results``.
        seconds: From its beginning on the node; if it never came to one, since it was submitted.
        records: Paths or URLs of the run's records, or of the journals of one that was killed.
    """

    hardware: str
    needs: Mapping[str, float]
    id: str
    submitted: float = 0
    status: str = "PENDING"
    message: str = "not submitted"
    node: str = ""
    log: str = ""
    printed: int = 0
    has_ended: bool = False
    stopped: str = ""
    words: str = ""
    code: int = 3
    host: str = ""
    seconds: float = 0
    records: tuple[str, ...] = ()
    _silent_since: float = 0
    _told_that_it_waits: bool = False

    def say(self, line: str) -> None:
        """Print a line about the job."""
        print(f"[{self.hardware}] {line}", flush=True)

    def poll(self, client: Any) -> None:
        """Ask how the job is, and print what it has printed since it was asked last."""
        now = time.monotonic()
        try:
            info = client.get_job_info(self.id)
            self.status, self.message = str(info.status), str(info.message or "")
            self.node, self.has_ended = info.driver_node_id or "", info.status.is_terminal()
            self.log = client.get_job_logs(self.id)
            self._silent_since = 0
        except Exception as error:
            # When it has ended, the node may be gone, and its log with it.
            if not self.has_ended and not self._silent_since:
                self._silent_since = now
                self.say(f"no answer, trying again for {SILENCE_SECONDS} s: {last_line(error)}")
            elif not self.has_ended and now > self._silent_since + SILENCE_SECONDS:
                self.status, self.message, self.has_ended = "", last_line(error), True
        self.has_ended |= f'{MARK}{{"exit"' in self.log  # Ray takes some more seconds to see that
        self._print_log()
        waited = now - self.submitted
        if self.status == "PENDING" and not self._told_that_it_waits and waited > PENDING_SECONDS:
            self._told_that_it_waits = True
            why = f"{describe_needs(self.needs)} is in use, or the job's folder is on its way"
            self.say(f"pending for {waited:.0f} s: {why}; see ray status")

    def _print_log(self) -> None:
        """Print the whole lines that are new; once the job has ended, also one without an end."""
        end = len(self.log) if self.has_ended else self.log.rfind("\n") + 1
        if end > self.printed:
            for line in self.log[self.printed : end].removesuffix("\n").split("\n"):
                if not line.startswith(MARK):
                    self.say(line)
            self.printed = end


def needs_of(profile: Profile, gpus: int) -> dict[str, float]:
    """Return what a run on this hardware asks of Ray: accelerator type and so many GPUs; for a CPU profile one CPU.

    Raises:
        HardwareError: It is not known what Ray calls this card.
    """
    if profile.is_cpu:
        named = {f"accelerator_type:{profile.ray_accelerator}": _ACCELERATOR_SHARE} if profile.ray_accelerator else {}
        return {**named, "CPU": 1}
    if profile.ray_accelerator is None:
        raise HardwareError(
            f'--hw={profile.id}: what Ray calls this card is not known: add ray_accelerator = "NAME" to '
            f"{profile.source}, where its nodes have the resource accelerator_type:NAME."
        )
    return {f"accelerator_type:{profile.ray_accelerator}": _ACCELERATOR_SHARE, "GPU": gpus}


def describe_needs(needs: Mapping[str, float]) -> str:
    """Say what a job asks of Ray: ``accelerator_type:H100 and 1 GPU``."""
    return " and ".join(f"{number:g} {name}" if number >= 1 else name for name, number in needs.items())


def fits(needs: Mapping[str, float], node: Mapping[str, float]) -> bool:
    """Return whether a node with these resources could run a job, were it idle."""
    return all(node.get(name, 0) >= number for name, number in needs.items())


def describe_nodes(nodes: Sequence[Mapping[str, float]]) -> str:
    """Say how many nodes there are of each kind."""
    kinds: Counter[str] = Counter()
    for total in nodes:
        own = sorted(name for name in total if name not in _COMMON and not name.startswith("node:") and name != "GPU")
        gpus = [f"{total['GPU']:g} GPU"] if total.get("GPU") else []
        kinds[" and ".join([*own, *gpus]) or "no accelerator"] += 1
    return "; ".join(f"{plural(count, 'node')} with {kind}" for kind, count in kinds.items()) or "no node"


def connect(address: str) -> Any:
    """Return a client of the cluster's jobs.

    Raises:
        ClusterError: Nothing answers there, or it is no Ray dashboard.
    """
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise ClusterError("Ray's job client is missing here: pip install 'ray[default]'.") from None
    logging.disable(logging.INFO)  # of Ray's client: each package and connection
    # Either of them would silently be taken instead of the address that was given.
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        os.environ.pop(name, None)
    try:
        return JobSubmissionClient(address)
    except Exception as error:  # of Ray, requests or urllib3: which depends on their versions
        raise ClusterError(f"{address} is no Ray dashboard that takes jobs: {last_line(error)}") from None


def list_nodes(address: str) -> list[dict[str, float]]:
    """Return the resources of each node that is alive.

    Raises:
        ClusterError: The cluster does not say.
    """
    from ray.util import state

    try:
        found = state.list_nodes(address, filters=[("state", "=", "ALIVE")], limit=10_000)
    except Exception as error:
        raise ClusterError(f"{address} does not say which nodes there are: {last_line(error)}") from None
    return [dict(node.resources_total) for node in found]


def submit(client: Any, job: Job, words: Sequence[str], python: str, folder: Path | None, record_url: str) -> None:
    """Give Ray a job: pytest with these words, in an empty folder or a copy of one.

    Raises:
        ClusterError: Ray does not take it.
    """
    command = [python, "-m", "pytest_rlregress.commands.run.job", *(["--here"] if folder else [])]
    command += [f"--record-url={record_url}"] if record_url else []
    variables = {
        "RAY_JOB_STOP_WAIT_TIME_S": str(KILL_SECONDS),
        # Ray sets it to the number of CPUs that were asked for, unless it is set: this is what it is on the node.
        "OMP_NUM_THREADS": "${OMP_NUM_THREADS}",
    }
    try:
        client.submit_job(
            entrypoint=f"exec {shlex.join([*command, '--', f'--hw={job.hardware}', *words])}",
            submission_id=job.id,
            runtime_env={"env_vars": variables, **({"working_dir": str(folder)} if folder else {})},
            metadata={"tool": "rlregress", "hardware": job.hardware, "arguments": shlex.join(words)},
            entrypoint_num_cpus=job.needs.get("CPU"),
            entrypoint_num_gpus=job.needs.get("GPU"),
            entrypoint_resources={name: count for name, count in job.needs.items() if ":" in name} or None,
        )
    except Exception as error:
        raise ClusterError(f"Ray does not take the job: {last_line(error)}") from None


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message: Ray hands on whole tracebacks of the other end."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
