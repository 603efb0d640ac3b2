"""Broken remedies of retention-after-resume, and stacks that differ."""

from __future__ import annotations

import shutil

from mutants import broken, mutant


@broken(only="alone-1")
def removes_nothing(folder, keep):
    return []


@broken(only="test_what_stays")
def by_name(folder, keep):
    paths = sorted(folder.glob("global_step_*"), key=str)[:-keep]
    for path in paths:
        shutil.rmtree(path)
    return paths


@mutant("absent")
def verl_looks_at_the_disk(monkeypatch):
    from pathlib import Path

    from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

    def register(self, new_path, max_ckpt_to_keep):
        actors = sorted(Path(new_path).parents[1].glob("*/actor"), key=lambda path: int(path.parent.name[12:]))
        self.remove_previous_save_local_path([*map(str, actors[:-max_ckpt_to_keep])] if max_ckpt_to_keep else [])

    monkeypatch.setattr(BaseCheckpointManager, "register_checkpoint", register)


@mutant("changed")
def disk_is_full(monkeypatch):
    import torch

    def save(*what):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", save)
