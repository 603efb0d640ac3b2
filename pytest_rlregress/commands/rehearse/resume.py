"""The checkpoint that a rehearsal's trainer saves: is it the trained model, and does a run go on from it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_rlregress.commands.rehearse import events


def find_checkpoint(trainer: Any) -> Path | None:
    """Return the folder of the trainer's last checkpoint."""
    folders = [*Path(trainer.args.output_dir).glob("checkpoint-*")]
    return max(folders, key=lambda one: int(one.name.rpartition("-")[2]), default=None)


def check_saved(trainer: Any, folder: Path | None, what: str) -> None:
    """Write whether the weights that a folder holds are the trainer's; ``what`` names the check."""
    if folder is None:
        events.write("saved", what=what, folder=None, why="no checkpoint was written")
        return
    from safetensors.torch import load_file

    saved: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        saved |= load_file(file)
    own = find_savable(trainer)
    names = [name for name in own if name in saved]
    differ = [name for name in names if not torch.equal(saved[name], own[name].to(saved[name].dtype))]
    tied = {own[name].data_ptr() for name in names}
    missing = [name for name in own if name not in saved and own[name].data_ptr() not in tied]
    events.write("saved", what=what, folder=folder.name, compared=len(names), differ=differ, missing=missing)


def find_savable(trainer: Any) -> dict[str, torch.Tensor]:
    """Return what a checkpoint should have, by the names that it has there."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        return {name: one.detach().cpu() for name, one in get_peft_model_state_dict(model).items()}
    return {name: one.detach().cpu() for name, one in model.state_dict().items()}


def go_on(trainer: Any, train: Callable[..., Any], recorder: Any) -> None:
    """Train one step more from the checkpoint, with weights of before replaced by others, and write how it began.

    The same process goes on: what a fresh one would load from elsewhere isn't seen.
    """
    folder = find_checkpoint(trainer)
    if folder is None:
        return
    own = {name: one.clone() for name, one in find_savable(trainer).items()}
    before = trainer.state.global_step
    kept = copy.copy(vars(trainer.args))
    trainer.args.max_steps = before + 1
    trainer.args.save_strategy = type(trainer.args.save_strategy)("no")
    trainer.args.eval_strategy = type(trainer.args.eval_strategy)("no")
    trainer._step, trainer._buffered_inputs, trainer._last_loaded_step = 0, None, -1
    with torch.no_grad():
        for weight in trainer.model.parameters():
            if weight.requires_grad:
                weight.mul_(0.5)
    recorder.awaits_resume = True
    try:
        train(trainer, resume_from_checkpoint=str(folder))
    finally:
        vars(trainer.args).update(kept)
    begun: dict[str, torch.Tensor] = recorder.resumed
    differ = [name for name, one in own.items() if name in begun and not torch.equal(begun[name], one)]
    steps = trainer.state.global_step - before
    events.write("resumed", steps=steps, compared=len(begun), differ=differ, moments=recorder.moments)
