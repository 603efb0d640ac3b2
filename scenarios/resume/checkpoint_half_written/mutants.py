"""Broken remedies of checkpoint-half-written, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.resume import latest_checkpoint


@broken(only="test_resume_from_the_last_whole_one")
def as_transformers_does(folder, ranks=None):
    from transformers.trainer_utils import get_last_checkpoint

    return folder / get_last_checkpoint(folder)


@broken(only="test_file_is_cut_short")
def last_file_is_there(folder, ranks=None):
    there = sorted(path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file())
    return there[-1] if there else latest_checkpoint(folder)


@mutant("absent", only="optimizer")
def transformers_passes_it_over(monkeypatch):
    from pathlib import Path

    from transformers import trainer

    monkeypatch.setattr(trainer, "get_last_checkpoint", lambda folder: str(latest_checkpoint(Path(folder))))


@mutant("changed", only="optimizer")
def transformers_refuses(monkeypatch):
    from transformers import trainer

    def refuse(folder):
        raise RuntimeError(f"{folder}: the newest checkpoint is not whole")

    monkeypatch.setattr(trainer, "get_last_checkpoint", refuse)
