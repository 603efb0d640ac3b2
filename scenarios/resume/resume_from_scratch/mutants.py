"""Broken remedies of resume-from-scratch, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.resume import latest_checkpoint


def steps_of(folder):
    return {int(path.name.rpartition("_")[2]): path for path in folder.absolute().glob("global_step_[0-9]*")}


@broken(only="nothing")
def newest_by_name(folder, ranks=None):
    return max(folder.absolute().glob("global_step_*"), key=str)


@broken(only="newest-without-actor")
def newest_by_number(folder, ranks=None):
    steps = steps_of(folder)
    return steps[max(steps)]


@mutant("absent", only="tracker-left-behind")
def verl_looks_at_the_folders(monkeypatch):
    from pathlib import Path

    from verl.trainer.ppo.v1 import trainer_base

    monkeypatch.setattr(trainer_base, "find_latest_ckpt_path", lambda folder: str(latest_checkpoint(Path(folder))))


@mutant("changed", only="test_auto")
def verl_refuses(monkeypatch):
    from verl.trainer.ppo.v1 import trainer_base

    def find(folder):
        raise RuntimeError("no tracker file")

    monkeypatch.setattr(trainer_base, "find_latest_ckpt_path", find)
