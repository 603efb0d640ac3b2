"""``rlregress run``: run the tests on several kinds of hardware of a Ray cluster at once."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from pytest_rlregress.util import arguments

_MANUAL = """\
examples:
  rlregress run --hw=h100,h200,h20 --ray-address http://head:8265 --record-dir records
  rlregress run --hw=h100 --record-dir records -- -k batch --rl-strict
  rlregress run --hw=h100,mine --hardware profiles --working-dir . --record-dir records -- tests/hardware

For each hardware Ray gets one job, which runs pytest --hw=HARDWARE ARGS on a node with that card: in an empty folder,
or in the copy of --working-dir. The nodes need the harness in their environment; they need no shared file system: the
records come back through the jobs' logs. A job waits until the card is free.

Exit codes, of the worst job: 0 all passed, 1 tests failed, 2 bad input or no node has the card, 3 a job of which the
result is not known. Ctrl-C stops the jobs.
"""
_ADDRESS = "http://127.0.0.1:8265"


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "run",
        description="Run the tests on each hardware, as one job of a Ray cluster for each, and collect the records.",
        epilog=_MANUAL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="-- ARGS", help="more arguments for pytest")
    parser.add_argument("--hw", type=_list, required=True, metavar="LIST", help="hardware profiles: h100,h200")
    parser.add_argument("--record-dir", type=Path, required=True, metavar="DIR", help="where the records go")
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
        "--working-dir", type=Path, metavar="DIR", help="run in a copy of this folder, sent to the nodes"
    )
    nodes.add_argument("--python", default="python", metavar="PATH", help="with the harness (default: python)")
    nodes.add_argument(
        "--hardware",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="with hardware profiles of your own, which the nodes know by the ini value rlregress_hardware",
    )
    parser.set_defaults(run=run)


def _list(text: str) -> list[str]:
    found = list(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names no hardware")
    return found


def _address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not the address of a dashboard, such as http://head:8265")
    return text.rstrip("/")


def run(options: argparse.Namespace) -> int:
    """Run on all of them and print the results; returns the exit code."""
    from pytest_rlregress.commands.run import jobs  # after --help

    return jobs.run(options)
