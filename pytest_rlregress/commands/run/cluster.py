"""Ask a Ray cluster which nodes it has, and give it jobs, through its dashboard. Needs Ray with its job client."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.run.job import STOP_SECONDS
from pytest_rlregress.hardware.profiles import HardwareError, Profile
from pytest_rlregress.util.text import plural

#: How much of the accelerator's type a job takes: a node has one of it, however many cards. What counts is the GPU.
_ACCELERATOR_SHARE = 0.001
#: Seconds after which Ray kills a job that it was told to stop.
KILL_SECONDS = STOP_SECONDS + 10
_SUBMIT_TRIES = 3
_RETRY_SECONDS = 2
#: What every node has.
_COMMON = ("CPU", "memory", "object_store_memory")


class ClusterError(Exception):
    """The cluster does not answer, or will not take a job."""


@dataclass(frozen=True)
class JobResources:
    """What the job for one hardware asks of Ray.

    Attributes:
        hardware: The profile's id.
        custom: Ray's custom resources, such as ``accelerator_type:H100``.
    """

    hardware: str
    gpus: float
    cpus: float
    custom: Mapping[str, float]

    def __str__(self) -> str:
        """In words: ``accelerator_type:H100 and 1 GPU``."""
        counted = {"GPU": self.gpus, "CPU": self.cpus}
        wanted = [*self.custom, *(f"{number:g} {name}" for name, number in counted.items() if number)]
        return " and ".join(wanted)

    def fits(self, total: Mapping[str, float]) -> bool:
        """Return whether a node with these resources could run it, were it idle."""
        wanted = {"GPU": self.gpus, "CPU": self.cpus, **self.custom}
        return all(total.get(name, 0) >= number for name, number in wanted.items())


def resources_for(profile: Profile, gpus: int) -> JobResources:
    """Return what a run on this hardware asks of Ray: accelerator type and so many GPUs; for a CPU profile one CPU.

    Raises:
        HardwareError: It is not known what Ray calls this card.
    """
    if profile.ray_accelerator is None and not profile.is_cpu:
        raise HardwareError(
            f'--hw={profile.id}: what Ray calls this card is not known: add ray_accelerator = "NAME" to '
            f"{profile.source}, where its nodes have the resource accelerator_type:NAME."
        )
    named = {f"accelerator_type:{profile.ray_accelerator}": _ACCELERATOR_SHARE} if profile.ray_accelerator else {}
    return JobResources(profile.id, 0 if profile.is_cpu else gpus, 1 if profile.is_cpu else 0, named)


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


def nodes(address: str) -> list[dict[str, float]]:
    """Return the resources of each node that is alive.

    Raises:
        ClusterError: The cluster does not say.
    """
    from ray.util.state import list_nodes

    try:
        found = list_nodes(address, filters=[("state", "=", "ALIVE")], limit=10_000)
    except Exception as error:
        raise ClusterError(f"{address} does not say which nodes there are: {last_line(error)}") from None
    return [dict(node.resources_total) for node in found]


def describe(found: Sequence[Mapping[str, float]]) -> str:
    """Say how many nodes there are of each kind."""
    kinds: Counter[str] = Counter()
    for total in found:
        own = sorted(name for name in total if name not in _COMMON and not name.startswith("node:") and name != "GPU")
        gpus = [f"{total['GPU']:g} GPU"] if total.get("GPU") else []
        kinds[" and ".join([*own, *gpus]) or "no accelerator"] += 1
    return "; ".join(f"{plural(count, 'node')} with {kind}" for kind, count in kinds.items()) or "no node"


def new_id(resources: JobResources) -> str:
    """Make an id for the job of one hardware."""
    return f"rlregress-{resources.hardware}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"


def submit(
    client: Any, job_id: str, resources: JobResources, arguments: Sequence[str], python: str, folder: Path | None
) -> None:
    """Give Ray the job of one hardware, under this id; ``folder`` goes with it.

    Raises:
        ClusterError: Ray does not take it.
    """
    here = ["--here"] if folder else []
    words = [python, "-m", "pytest_rlregress.commands.run.job", *here, "--", f"--hw={resources.hardware}", *arguments]
    variables = {
        "RAY_JOB_STOP_WAIT_TIME_S": str(KILL_SECONDS),
        # Ray sets it to the number of CPUs that were resources for, unless it is set: this is what it is on the node.
        "OMP_NUM_THREADS": "${OMP_NUM_THREADS}",
    }
    for attempt in range(_SUBMIT_TRIES):
        try:
            client.submit_job(
                entrypoint=f"exec {shlex.join(words)}",
                submission_id=job_id,
                runtime_env={"env_vars": variables, **({"working_dir": str(folder)} if folder else {})},
                metadata={"tool": "rlregress", "hardware": resources.hardware, "arguments": shlex.join(arguments)},
                entrypoint_num_cpus=resources.cpus or None,
                entrypoint_num_gpus=resources.gpus or None,
                entrypoint_resources=dict(resources.custom) or None,
            )
            return
        except Exception as error:
            if attempt and "already exists" in str(error):  # the answer to the try before was lost
                return
            if attempt == _SUBMIT_TRIES - 1 or isinstance(error, ValueError):
                raise ClusterError(f"Ray does not take the job: {last_line(error)}") from None
            time.sleep(_RETRY_SECONDS)


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message: Ray hands on whole tracebacks of the other end."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
