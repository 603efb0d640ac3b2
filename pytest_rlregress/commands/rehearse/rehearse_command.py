"""``rlregress rehearse -- COMMAND``: a user's own training run, small and watched, before it costs anything."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlregress.util import arguments
from pytest_rlregress.util.coverage import Result
from pytest_rlregress.util.text import strip_escapes, wrapped
from pytest_rlregress.util.units import GIB, format_duration

if TYPE_CHECKING:
    from pytest_rlregress.commands.rehearse.process import CommandEnd

#: What stands behind -- is a command of its own.
TAKES_A_COMMAND = True
STEPS, PATIENCE = 3, 600.0
#: The path of a Unix socket may have 107 bytes, of which Ray takes some 70 below the folder for temporary files.
LONGEST = 20
_DESCRIPTION = """\
Run a training command in miniature and watch it: your entry point, configuration, data, reward functions and chat
template, with TRL's own GRPOTrainer or verl's own V1 trainer, and vLLM. What is expensive is made small, and said; your
files stay as they are.

A command is "trl grpo …", "accelerate launch train.py …", "torchrun train.py …" or "python train.py …" around TRL's
GRPOTrainer, "python -m verl.trainer.main_ppo …", or "bash run.sh" with one of them; of a script, what would change
something (pip, rm, git, sbatch, …) isn't run and listed.

--as-is runs TRL's command as it is, on your cards: nothing is made small, redirected or left out. A recorder looks at
what passes by, and the trainer stops by its own means after --steps updates. What the script does then, it does: saving
and pushing too.

exit code:
  0  nothing is found in what was rehearsed
  1  something is found
  2  bad input, or an error of the command's or of the rehearsal's own
  3  nothing is found, and something without which nothing is known could not be checked
"""
_EPILOG = """\
examples:
  rlregress rehearse -- trl grpo --config grpo.yaml
  rlregress rehearse -- python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=…
  rlregress rehearse --steps 4 --keep out/ -- accelerate launch train.py --beta 0.04
  rlregress rehearse --as-is --steps 2 -- bash run.sh
"""


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "rehearse",
        formatter_class=arguments.ManualFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--steps", type=_count_steps, default=STEPS, metavar="N", help=f"updates, default {STEPS}")
    parser.add_argument("--as-is", action="store_true", help="the real run on its cards, watched; TRL's only")
    parser.add_argument(
        "--keep",
        type=arguments.path,
        metavar="FOLDER",
        help="keep the log, the record and the checkpoint in a new folder; with --as-is the record",
    )
    parser.add_argument(
        "--patience",
        type=arguments.seconds,
        default=PATIENCE,
        metavar="SECONDS",
        help=f"end a command that says nothing for so long, default {PATIENCE:.0f}; not with --as-is",
    )
    parser.add_argument("--json", action="store_true", help="as a JSON object")
    parser.set_defaults(run=run)


def _count_steps(text: str) -> int:
    if not arguments.is_number(text) or int(text) < 2:
        raise argparse.ArgumentTypeError(
            f"{arguments.shorten(text)} isn't a number of steps: write 2 or more, so that a sync is seen"
        )
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Rehearse the command and print what was found; returns the exit code."""
    from pytest_rlregress.commands.rehearse import as_is_process, process
    from pytest_rlregress.commands.rehearse.as_is_ways_in import NOT_VERL, is_verl

    command = options.behind
    if not command:
        return _refuse("no command: write rlregress rehearse -- trl grpo --config grpo.yaml")
    missing = process.find_missing(command)
    if missing:
        return _refuse(missing)
    if options.as_is and any(is_verl(command[at : at + 2]) for at in range(len(command))):
        return _refuse(NOT_VERL)
    if options.keep and options.keep.exists() and (not options.keep.is_dir() or any(options.keep.iterdir())):
        return _refuse(f"--keep {options.keep}: it isn't an empty folder; name a new one")
    short = None if len(tempfile.gettempdir()) < LONGEST else "/tmp"
    with tempfile.TemporaryDirectory(prefix="rehearse-", dir=short, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            folder = options.keep.resolve()

        def say(line: str) -> None:
            print(f"rlregress rehearse: {line}", file=sys.stderr)

        if options.as_is:
            ran = as_is_process.run(command, folder, options.steps, say, is_quiet=options.json)
            return _report(options, folder, ran)
        ran = process.run(command, folder, options.steps, options.patience, say, Path(made, "t"))
        return _report(options, folder, ran)


def _refuse(why: str) -> int:
    print(f"rlregress rehearse: {why}", file=sys.stderr)
    return 2


def _report(options: argparse.Namespace, folder: Path, ran: CommandEnd) -> int:
    from pytest_rlregress.commands.rehearse import events, show
    from pytest_rlregress.commands.rehearse.judge import judge
    from pytest_rlregress.commands.rehearse.process import LOG, read_left_out

    found = list(events.read(folder))
    why = "a script's command that would change something isn't run"
    found += [{"kind": "unrehearsed", "what": line, "why": why} for line in read_left_out(folder)]
    judged, title = judge(found), shlex.join(options.behind)
    failed = next((one for one in found if one["kind"] == "failed" and one["ours"]), None)
    lines, code = [], judged.result.exit_code
    trained = any(one["kind"] == "trained" for one in found)
    foreign = next((one["why"] for one in found if one["kind"] == "foreign"), "")
    if foreign:
        lines.append(f"the command was ended: {foreign}")
    elif ran.code is None:
        lines.append(f"the command said nothing for {options.patience:.0f} seconds and was ended")
    elif failed:
        lines.append(f"an error of the rehearsal itself: {failed['text']}")
    elif ran.code and any(row.check in ("training", "configuration") for row in judged.rows):
        pass  # it is said there
    elif ran.code and not trained:
        last = _last_lines(folder / LOG)
        lines.append(f"the command ended with exit code {ran.code} before it trained: {last}")
    elif ran.code:
        lines.append(f"the command ended with exit code {ran.code} after it trained: {_last_lines(folder / LOG)}")
    elif not judged.records:
        lines.append("the command ended, and made no trainer of TRL's or verl's that trained")
    if lines and judged.result is not Result.FINDINGS:
        code = 2
    if judged.broken and judged.result is not Result.FINDINGS:
        code = 2
    cost = {"seconds": round(ran.seconds, 1), "memory_bytes": ran.memory, "processes_left": ran.left}
    if options.json:
        document = show.as_document(title, judged, {"ended": lines, **cost, "exit_code": code})
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        wrapped_lines = [part for line in lines for part in wrapped(line, "", "  ")]
        took = format_duration(ran.seconds)
        if ran.memory:
            took += f", at most {ran.memory / GIB:.1f} GiB of memory"
        print(show.as_text(title, judged, [*wrapped_lines, took]))
    return code


def _last_lines(log: Path) -> str:
    """Return the last line of a log that says something; a real run has no log."""
    if not log.exists():
        return "its own output says why"
    lines = [strip_escapes(line).strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    said = [line for line in lines if line and not line.startswith(("warnings.warn", "^"))]
    return said[-1] if said else "it said nothing"
