"""``rlregress preflight``: check a trainer's configuration for the documented failures before a GPU is rented."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any

from pytest_rlregress.hardware import HardwareError, Machine, discover, load_profiles, match, select
from pytest_rlregress.preflight import report
from pytest_rlregress.preflight.document import RuleContext, read
from pytest_rlregress.preflight.formats import ConfigError
from pytest_rlregress.util.units import GIB


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "preflight",
        description="Check the configuration of a run for the documented failures: verl's YAML or launch script, or "
        "prime-rl's TOML. The exit code is 1 if there is a finding, 0 if there is none, 2 for bad input.",
    )
    parser.add_argument(
        "config",
        nargs="+",
        metavar="CONFIG|KEY=VALUE",
        help="files and overrides, each over what came before; prime-rl's three files as trainer=train.toml "
        "orchestrator=orch.toml inference=infer.toml",
    )
    parser.add_argument("--hw", default="auto", metavar="PROFILE", help="hardware it is for; auto: this machine's")
    parser.add_argument(
        "--memory", type=float, metavar="GIB", help="of a card, where a profile's cards differ: 80 for the larger A100"
    )
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="the longest prompt, in the engine's tokens")
    parser.add_argument(
        "--installed", action="store_true", help="what is installed here is what the run will have, though not the GPU"
    )
    parser.add_argument("--json", action="store_true", help="as a JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the configuration and print what was found; returns the exit code."""
    try:
        run_context = _context(options)
    except (ConfigError, HardwareError) as error:
        print(f"rlregress preflight: {error}", file=sys.stderr)
        return 2
    with contextlib.redirect_stdout(sys.stderr):  # what is imported to see whether it is installed may talk
        found = report.check(run_context)
    print((report.as_json if options.json else report.as_text)(run_context, found))
    return 1 if found.findings else 0


def _context(options: argparse.Namespace) -> RuleContext:
    config = read(options.config, os.environ)
    profiles, machine = load_profiles(), discover()
    hw = options.hw.strip().lower()
    profile = profiles.get(hw) or select(hw, machine if hw == "auto" else Machine(), profiles)
    try:
        here = not profile.is_cpu and match(machine, profiles) is profile
    except HardwareError:  # cards of several models
        here = False
    memory = int(profile.memory_gib * GIB)
    if here:
        memory = min(gpu.memory_bytes or memory for gpu in machine.gpus)
    if options.memory:
        memory = int(options.memory * GIB)
    card = "GPU" if profile.is_cpu else profile.title
    why = f"this machine has no {card}: what is installed here may not be what the run has (it is: --installed)"
    return RuleContext(config, profile, memory, "" if here or options.installed else why, options.prompt_tokens)
