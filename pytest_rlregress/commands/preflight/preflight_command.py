"""``rlregress preflight``: check a trainer's configuration for the documented failures before a GPU is rented."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from dataclasses import asdict
from typing import Any

from pytest_rlregress.commands.preflight.command import read
from pytest_rlregress.commands.preflight.config import ConfigError, PlannedRun, Unchecked
from pytest_rlregress.commands.preflight.rules import RULES
from pytest_rlregress.commands.preflight.script import name_originals, tell_script
from pytest_rlregress.hardware import HardwareError, Machine, discover, load_profiles, match, select
from pytest_rlregress.util import arguments
from pytest_rlregress.util.coverage import Coverage, Result
from pytest_rlregress.util.text import plural, wrapped
from pytest_rlregress.util.units import GIB

#: What stands behind -- is a command of its own.
TAKES_A_COMMAND = True
_MOST_PARAMETERS = 1e15
_DESCRIPTION = """\
Check the configuration of a run for misspelt keys, unknown values and the documented failures: the command that starts
verl or TRL, verl's YAML, TRL's YAML (with accelerate's), prime-rl's TOML.

What stands behind -- is run, by its own interpreter, up to where it has composed its configuration: its imports, and
what its script does before that, really happen. Until then it sees no GPU, starts no process, opens no connection and
writes no file, and models and data aren't loaded. A launch script runs as it is, but changes and starts nothing. For a
file, the trainer that is installed here is asked.

exit code:
  0  nothing is found
  1  something is found
  2  bad input
  3  nothing is found, and a value is missing without which something could not be checked: the last line names it
"""
_EPILOG = """\
examples:
  rlregress preflight run.yaml --hw=h100 data.max_response_length=2048
  rlregress preflight --hw=a100 --memory=80 -- python3 -m verl.trainer.main_ppo data.train_batch_size=256 …
  rlregress preflight --hw=h100 -- accelerate launch --config_file zero3.yaml train.py --config grpo.yaml
  rlregress preflight grpo.yaml zero3.yaml --hw=l4 vllm_gpu_memory_utilization=0.4
  rlregress preflight --hw=h100 --prompt-tokens=512 -- python train.py
  rlregress preflight run.toml --hw=a6000 --prompt-tokens=1500

a launch script, of which the first command that composes a configuration is checked:
  rlregress preflight --hw=h100 -- bash run.sh
"""


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "preflight",
        formatter_class=arguments.ManualFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG|KEY=VALUE",
        help="files and overrides, each over what came before, before or behind options; prime-rl's three files as "
        "trainer=train.toml orchestrator=orch.toml inference=infer.toml",
    )
    parser.add_argument("--hw", default="auto", metavar="PROFILE", help="hardware it is for; auto: this machine's")
    parser.add_argument(
        "--memory",
        type=arguments.positive,
        metavar="GIB",
        help="of a card, where a profile's cards differ: 80 for the larger A100",
    )
    parser.add_argument(
        "--parameters", type=_count, metavar="N", help="of the model, where its name and files do not tell: 7B, 500M"
    )
    parser.add_argument(
        "--prompt-tokens", type=arguments.count, metavar="N", help="the longest prompt, in the engine's tokens"
    )
    parser.add_argument(
        "--installed",
        action="store_true",
        help="also check the packages that are installed here, as in the run's container image; without it they are "
        "checked only on a machine that has the GPU of --hw",
    )
    parser.add_argument("--json", action="store_true", help="as a JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the configuration and print what was found; returns the exit code."""
    try:
        checked = read(options.words, os.environ, options.behind)
        _take_hardware(checked, options)
    except (ConfigError, HardwareError) as error:
        print(f"rlregress preflight: {error}", file=sys.stderr)
        return 2
    with contextlib.redirect_stdout(sys.stderr):  # what is imported to see whether it is installed may talk
        report = check(checked)
    text = json.dumps(report, indent=2, ensure_ascii=False) if options.json else as_text(checked, report)
    print(name_originals(text, checked.script))
    return next(one.exit_code for one in Result if one.word == report["result"])


def _count(text: str) -> int:
    """Read a number of parameters: ``7B``, ``0.5b``, ``500M`` or ``7000000000``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([bm]?)", text.strip().lower())
    count = float(found[1]) * {"b": 1e9, "m": 1e6, "": 1}[found[2]] if found else 0.0
    if not 0 < count < _MOST_PARAMETERS:
        text = arguments.shorten(text)
        raise argparse.ArgumentTypeError(f"{text} isn't a number of parameters: write 7B, 0.5B or 500M")
    return int(count)


def _take_hardware(run: PlannedRun, options: argparse.Namespace) -> None:
    """Add to a run what the options and this machine say of its hardware, prompts and model."""
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
    run.hardware, run.card = profile.id, profile.title
    run.capability = profile.capability
    run.memory_bytes = int(options.memory * GIB) if options.memory else memory
    run.prompt_tokens, run.parameters = options.prompt_tokens, options.parameters
    if not here and not options.installed:
        card = "GPU" if profile.is_cpu else profile.title
        run.packages_unknown = (
            f"this machine has no {card}: what is installed here may not be what the run has (it is: --installed)"
        )


def check(run: PlannedRun) -> dict[str, Any]:
    """Put a run to every rule of its trainer; returns the report, as ``--json`` prints it."""
    findings = []
    unchecked: dict[tuple[str, Unchecked], None] = {}  # one reason, whatever the number of keys
    rules = {failure: rule for failure, (rule, trainers) in RULES.items() if run.trainer in trainers}
    for failure, rule in rules.items():
        for result in rule(run):
            if isinstance(result, Unchecked):
                unchecked[failure, result] = None
            else:  # an override has an argument where others have file and line
                findings.append({"failure": failure, **asdict(run.place(result.key)), **asdict(result)})
    doubtful = {failure for failure, _ in unchecked}
    coverage = Coverage(tuple(failure for failure in rules if failure not in doubtful), tuple(unchecked))
    return {
        "trainer": run.trainer,
        "hardware": run.hardware,
        "files": run.files,
        "program": run.program,
        "result": coverage.judge(findings).word,
        "findings": findings,
        "checked": [*coverage.checked],
        "not_checked": [{"failure": failure, **asdict(one)} for failure, one in unchecked],
        "missing": [*coverage.missing],
        **(
            {"script": {name: run.script[name] for name in ("checked", "not_run", "written", "code")}}
            if run.script
            else {}
        ),
    }


def as_text(run: PlannedRun, report: dict[str, Any]) -> str:
    """Write the findings of a report, then what was checked and what was not."""
    lines = []
    for one in report["findings"]:
        lines += [f"{run.place(one['key'])}: {one['key']}: {one['failure']}", *wrapped(one["why"], "  ", "  ")]
        lines += ["  instead", *(f"    {line}" for line in one["instead"].splitlines()), ""]
    reasons = ((one["failure"], Unchecked(one["why"], tuple(one["missing"]))) for one in report["not_checked"])
    coverage = Coverage(tuple(report["checked"]), tuple(reasons))
    found = coverage.headline(plural(len(report["findings"]), "finding") if report["findings"] else "")
    memory = f" with {run.memory_bytes / GIB:.0f} GiB" if run.memory_bytes else ""
    told = tell_script(run.script) if run.script else ()
    return "\n".join([*lines, f"{run.title} for {run.card}{memory}: {found}", *coverage.lines(), *told])
