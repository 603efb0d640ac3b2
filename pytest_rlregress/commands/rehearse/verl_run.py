"""Rehearse ``python -m verl.trainer.main_ppo ARGUMENTS``: this module is run in its place, by its interpreter.

It composes the configuration as verl does, makes it small by overrides behind the user's, and starts verl's own entry
point with them. What its processes write down becomes the records of its steps.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pytest_rlregress.commands.preflight.command import read
from pytest_rlregress.commands.preflight.config import ConfigError, PlannedRun
from pytest_rlregress.commands.rehearse import events, small_model, verl_data, verl_reward, verl_shrink
from pytest_rlregress.commands.rehearse.shrink import ChangedValue, Unrehearsed
from pytest_rlregress.fixtures import verl_on_cpu, verl_process, verl_record, verl_settings, verl_step
from pytest_rlregress.stack import InterfaceMissing
from pytest_rlregress.util.text import on_one_line, strip_escapes

PROGRAM = ("-m", "verl.trainer.main_ppo")
LIMIT_SECONDS = 3600.0
WATCH = "pytest_rlregress.commands.rehearse.verl_watch"
_ERROR = re.compile(r"^(?:\([^)]*\) )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?:: .*)?)$")
_FRAME = re.compile(r'^(?:\([^)]*\) )?\s*File "([^"]+)", line (\d+)')
#: What Ray says of another process' error.
_RAYS = ("ray.exceptions.", "RayTaskError", "ActorDiedError")


def main(arguments: Sequence[str]) -> int:
    """Rehearse verl's command with these arguments; returns its exit code."""
    environ = make_own_environment(os.environ)
    run = compose(arguments, environ)
    why = verl_shrink.find_refusal(run.get, run.get("model_engine") or "")
    if why:
        end(why)
    try:
        verl_step.check_interface("v1")
    except InterfaceMissing as error:
        end(f"a rehearsal {error}")
    verl_reward.validate(run.tree)
    steps, folder = int(os.environ[events.STEPS_VARIABLE]), Path(os.environ["TMPDIR"]) / "v"
    folder.mkdir()
    settings, templates, tokenizer = make_small(run, steps, folder)
    code, begun = 0, time.monotonic()
    try:
        train(arguments, settings, environ, folder)
    except verl_process.VerlRunFailed as error:
        code = 1
        print(error, flush=True)
    seconds = time.monotonic() - begun
    lines = verl_record.read_metrics(folder)
    completions = read_completions(folder)
    if code and completions:
        note_failure(folder, len(lines) + 1)
    if lines:
        write_records(run, folder, settings, lines, completions, templates, tokenizer)
        events.write("trained", steps=len(lines), seconds=seconds)
    return code


def end(why: str) -> NoReturn:
    """End the rehearsal, for a reason that is the command's."""
    events.write("foreign", why=why)
    raise SystemExit(f"rlregress rehearse: {why}")


def make_own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it is without the hook: what it starts isn't entered."""
    entry = str(events.folder() / "entry")
    paths = [one for one in environ.get("PYTHONPATH", "").split(os.pathsep) if one and one != entry]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def compose(arguments: Sequence[str], environ: Mapping[str, str]) -> PlannedRun:
    """Return the user's configuration, as verl's own program composes it."""
    try:
        run = read([], environ, [sys.executable, *PROGRAM, *arguments])
    except ConfigError as error:
        refuse(str(error))
    if run.not_composed:
        end(f"verl composes no configuration: {run.not_composed}")
    if run.refused:
        refuse(f"it has no key {', '.join(run.refused)}")
    return run


def refuse(text: str) -> NoReturn:
    """End the rehearsal of a configuration that verl refuses as it is written."""
    events.write("refused", text=on_one_line(text), by="verl")
    raise SystemExit(f"rlregress rehearse: verl refuses the configuration: {text}")


def make_small(run: PlannedRun, steps: int, folder: Path) -> tuple[dict[str, Any], list[tuple[int, ...]], Any]:
    """Make model, data and configuration small, and try the reward function.

    Returns:
        verl's settings by their dotted names, the ids of the prompts of the rows that are taken, and the tokenizer.
    """
    from transformers import AutoTokenizer

    get = run.get
    prompt, room = get("data.prompt_key") or "prompt", get("data.max_prompt_length") or 512
    try:
        whole = verl_data.load(get("data.train_files"), "data.train_files", prompt)
        validated = verl_data.load(get("data.val_files"), "data.val_files", prompt)
        score = verl_reward.find(get)
    except ValueError as error:
        end(str(error))
    name = os.path.expanduser(str(get(f"{verl_settings.MODEL}.path")))
    model = small_model.find(name)
    tokenizer = AutoTokenizer.from_pretrained(model)
    if get(f"{verl_settings.MODEL}.custom_chat_template"):
        tokenizer.chat_template = get(f"{verl_settings.MODEL}.custom_chat_template")
    options = get("data.apply_chat_template_kwargs") or {}

    def make_ids(chat: Any) -> tuple[int, ...]:
        return tuple(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False, **options))

    verl_data.look_at(whole, prompt, tokenizer, options, get)
    changes = verl_shrink.find_changes(get, steps, str(events.folder()), room, find_bucket(model))
    new = {one.key: one.new for one in changes if isinstance(one, ChangedValue)}
    size = new.get("data.train_batch_size", get("data.train_batch_size"))
    rows = verl_data.select(whole, prompt, steps * size, room, lambda chat: len(make_ids(chat)))
    if len(rows) < size:
        end(f"data.train_files: {len(rows)} different prompts fit data.max_prompt_length {room}: a batch has {size}")
    verl_reward.run(score, verl_data.flatten(whole, prompt), get)
    tell(changes)
    few, files = range(min(len(validated), verl_data.VALIDATED)), [get("data.train_files"), get("data.val_files")]
    new |= {
        "data.train_files": verl_data.write(whole, rows, folder / "train.parquet", "data.train_files", files[0]),
        "data.val_files": verl_data.write(validated, few, folder / "val.parquet", "data.val_files", files[1]),
        f"{verl_settings.MODEL}.path": model,
    }
    return new, [make_ids(chat) for chat in whole.select(rows)[prompt]], tokenizer


def tell(changes: Sequence[ChangedValue | Unrehearsed]) -> None:
    """Write what is changed, and what isn't rehearsed."""
    for one in changes:
        if isinstance(one, Unrehearsed):
            events.note_unrehearsed(one.what, one.why)
        else:
            events.note_change(one.key, one.old, one.new, one.why)
    events.note_unrehearsed("what needs a GPU in verl", f"these stand in: {'; '.join(verl_on_cpu.STAND_INS)}")


def find_bucket(model: str) -> int:
    """Return how many megabytes hold each weight of a small model whole."""
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(model).get_text_config()
    return max(64, int(text.vocab_size * text.hidden_size * 4 // 2**20) + 8)


def train(arguments: Sequence[str], settings: Mapping[str, Any], environ: Mapping[str, str], folder: Path) -> None:
    """Run verl's entry point with the user's arguments and ours behind them.

    Raises:
        VerlRunFailed: It ended otherwise than with status 0.
    """
    recorded = folder / verl_settings.RECORDED_FOLDER
    recorded.mkdir()
    modules = [*verl_on_cpu.MODULES, *filter(None, environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","))]
    variables = {
        **environ,
        **verl_on_cpu.ENVIRONMENT,
        verl_on_cpu.forked_workers.SOCKET_VARIABLE: str(folder / "forks"),
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "VERL_FILE_LOGGER_PATH": str(folder / verl_settings.METRICS_FILE),
        verl_settings.RECORDED_VARIABLE: str(recorded),
        "VERL_USE_EXTERNAL_MODULES": ",".join([*modules, verl_settings.RECORDER, WATCH]),
        "PYTHONPATH": os.pathsep.join(filter(None, [environ["PYTHONPATH"], os.getcwd()])),
    }
    said = 0

    def look(process: verl_process.TrainerProcess) -> None:
        nonlocal said
        log = process.log_path.read_bytes()
        sys.stdout.buffer.write(log[said:])
        sys.stdout.flush()
        said = len(log)

    written = {key: write_value(value) for key, value in settings.items()}
    with verl_process.start(folder, written, variables, verl_on_cpu.LAUNCHER, arguments, Path.cwd()) as process:
        process.wait(LIMIT_SECONDS, look)


def write_value(value: Any) -> str:
    """Return a value as Hydra reads it."""
    if value is None:
        return "null"
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def read_completions(folder: Path) -> list[dict[str, Any]]:
    """Return what the engine sampled; the last line may be cut off."""
    file = folder / verl_settings.RECORDED_FOLDER / "completions.jsonl"
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def note_failure(folder: Path, step: int) -> None:
    """Write the error that a run ended with, by its log: the last one that isn't of Ray."""
    log = (folder / "main_ppo.log").read_text(encoding="utf-8", errors="replace")
    place, found = "", ("verl's trainer", "it says no error")
    for line in map(strip_escapes, log.splitlines()):
        if frame := _FRAME.match(line):
            place = f"{frame[1]}:{frame[2]}"
        elif (error := _ERROR.match(line)) and not error[1].startswith(_RAYS):
            found = (place, error[1])
    events.write("failed", when=f"in step {step}", text=found[1], places=[found[0]], ours=False, trace=log[-4000:])


def write_records(
    run: PlannedRun,
    folder: Path,
    settings: Mapping[str, Any],
    lines: Sequence[dict[str, Any]],
    completions: Sequence[dict[str, Any]],
    templates: Sequence[tuple[int, ...]],
    tokenizer: Any,
) -> None:
    """Write the record of each step, and whether the checkpoint has the trained weights."""
    import torch
    from transformers import AutoModelForCausalLM

    from pytest_rlregress.commands.rehearse import record, verl_records

    model = AutoModelForCausalLM.from_pretrained(settings[f"{verl_settings.MODEL}.path"], dtype=torch.float32)
    files = verl_records.RunFiles.load(folder / verl_settings.RECORDED_FOLDER, lines, completions)

    def get(key: str) -> Any:
        return settings[key] if key in settings else run.get(key)

    try:
        for step in verl_records.StepReader(files, get, tokenizer, model, templates).read():
            events.write("step", record=record.to_plain(step))
        verl_records.check_checkpoint(Path(settings["trainer.default_local_dir"]), files)
    except Exception as error:
        events.write("observer", where="records", trace="".join(traceback.format_exception(error)))


def run_and_tell(arguments: Sequence[str]) -> int:
    """Do what ``main`` does; an error of the rehearsal's own is written down."""
    try:
        return main(arguments)
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        text = f"{type(error).__name__}: {error}"
        events.write("failed", when="before it trains", text=text, places=[], ours=True, trace=trace)
        print(trace, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(run_and_tell(sys.argv[1:]))
