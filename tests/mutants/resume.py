"""Mutants of scenarios/resume."""

from __future__ import annotations

import re
import shutil

from mutants import broken, mutant
from pytest_rlregress.remedies.resume import latest_checkpoint, remove_old_checkpoints


def steps_of(folder):
    return {int(path.name.rpartition("_")[2]): path for path in folder.absolute().glob("global_step_[0-9]*")}


@broken("resume-from-scratch", only="nothing")
def newest_by_name(folder, ranks=None):
    return max(folder.absolute().glob("global_step_*"), key=str)


@broken("resume-from-scratch", only="newest-without-actor")
def newest_by_number(folder, ranks=None):
    steps = steps_of(folder)
    return steps[max(steps)]


@broken("resume-from-scratch", only="newest-removed")
def as_the_tracker_says(folder, ranks=None):
    return folder.absolute() / f"global_step_{(folder / 'latest_checkpointed_iteration.txt').read_text()}"


@broken("resume-from-scratch", only="nothing")
def relative_path(folder, ranks=None):
    return folder / latest_checkpoint(folder, ranks).name


@broken("resume-from-scratch", only="newest-without-actor")
def removes_what_is_not_whole(folder, ranks=None):
    path = latest_checkpoint(folder, ranks)
    for step, other in steps_of(folder).items():
        if step > int(path.name.rpartition("_")[2]):
            shutil.rmtree(other)
    return path


@broken("resume-from-scratch", only="test_first_run")
def any_name_with_a_number(folder, ranks=None):
    named = [path for path in folder.glob("*") if re.search(r"\d", path.name)]
    return named[0] if named else None


@mutant("resume-from-scratch", "absent", only="tracker-left-behind")
def verl_looks_at_the_folders(monkeypatch):
    from pathlib import Path

    from verl.trainer.ppo.v1 import trainer_base

    monkeypatch.setattr(trainer_base, "find_latest_ckpt_path", lambda folder: str(latest_checkpoint(Path(folder))))


@mutant("resume-from-scratch", "changed", only="test_auto")
def verl_refuses(monkeypatch):
    from verl.trainer.ppo.v1 import trainer_base

    def find(folder):
        raise RuntimeError("no tracker file")

    monkeypatch.setattr(trainer_base, "find_latest_ckpt_path", find)


@broken("resume-world-size", only="test_refused_beforehand")
def any_number_of_ranks(folder, ranks=None):
    return latest_checkpoint(folder)


@broken("resume-world-size", only="test_refused_beforehand")
def older_of_as_many_ranks(folder, ranks=None):
    try:
        return latest_checkpoint(folder, ranks)
    except ValueError:
        return folder / "global_step_8"


@broken("resume-world-size", only="test_shard_of_a_rank_is_missing")
def first_rank_will_do(folder, ranks=None):
    return next(folder.glob(f"global_step_9/actor/model_world_size_{ranks or '*'}_rank_0.pt")).parents[1]


@broken("resume-world-size", only="test_every_rank_gets_its_own")
def one_process_only(folder, ranks=None):
    return latest_checkpoint(folder, 1)


@mutant("resume-world-size", "absent")
def verl_begins_with_other_weights(monkeypatch):
    from pathlib import Path

    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    load = FSDPCheckpointManager.load_checkpoint

    def load_own(self, local_path, **keywords):
        if any(Path(local_path).glob(f"model_world_size_{self.world_size}_*")):
            load(self, local_path, **keywords)

    monkeypatch.setattr(FSDPCheckpointManager, "load_checkpoint", load_own)


@mutant("resume-world-size", "changed")
def verl_counts_the_shards(monkeypatch):
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    def load(self, *places, **keywords):
        raise RuntimeError(f"saved by another number of ranks than {self.world_size}")

    monkeypatch.setattr(FSDPCheckpointManager, "load_checkpoint", load)


@broken("checkpoint-half-written", only="test_resume_from_the_last_whole_one")
def as_transformers_does(folder, ranks=None):
    from transformers.trainer_utils import get_last_checkpoint

    return folder / get_last_checkpoint(folder)


@broken("checkpoint-half-written", only="test_file_is_cut_short")
def last_file_is_there(folder, ranks=None):
    there = sorted(path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file())
    return there[-1] if there else latest_checkpoint(folder)


@broken("checkpoint-half-written", only="test_file_is_cut_short")
def none_where_none_is_whole(folder, ranks=None):
    try:
        return latest_checkpoint(folder, ranks)
    except ValueError:
        return None


@mutant("checkpoint-half-written", "absent", only="optimizer")
def transformers_passes_it_over(monkeypatch):
    from pathlib import Path

    from transformers import trainer

    monkeypatch.setattr(trainer, "get_last_checkpoint", lambda folder: str(latest_checkpoint(Path(folder))))


@mutant("checkpoint-half-written", "changed", only="optimizer")
def transformers_refuses(monkeypatch):
    from transformers import trainer

    def refuse(folder):
        raise RuntimeError(f"{folder}: the newest checkpoint is not whole")

    monkeypatch.setattr(trainer, "get_last_checkpoint", refuse)


@broken("retention-after-resume", only="alone-1")
def removes_nothing(folder, keep):
    return []


@broken("retention-after-resume", only="test_what_stays")
def by_name(folder, keep):
    paths = sorted(folder.glob("global_step_*"), key=str)[:-keep]
    for path in paths:
        shutil.rmtree(path)
    return paths


@broken("retention-after-resume", only="test_what_stays")
def all_that_is_not_whole(folder, keep):
    removed = remove_old_checkpoints(folder, keep)
    for path in folder.glob("global_step_[0-9]*"):
        if not (path / "data.pt").is_file():
            shutil.rmtree(path)
    return removed


@broken("retention-after-resume", only="test_what_stays")
def without_a_limit(folder, keep):
    return remove_old_checkpoints(folder, max(1, keep))


@broken("retention-after-resume", only="test_what_stays")
def newest_first(folder, keep):
    return remove_old_checkpoints(folder, keep)[::-1]


@broken("retention-after-resume", only="with-verl's-1")
def weights_only(folder, keep):
    steps = steps_of(folder)
    old = [steps[step] for step in sorted(steps)[:-keep]]
    for path in old:
        shutil.rmtree(path / "actor", ignore_errors=True)
    return old


@mutant("retention-after-resume", "absent")
def verl_looks_at_the_disk(monkeypatch):
    from pathlib import Path

    from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

    def register(self, new_path, max_ckpt_to_keep):
        actors = sorted(Path(new_path).parents[1].glob("*/actor"), key=lambda path: int(path.parent.name[12:]))
        self.remove_previous_save_local_path([*map(str, actors[:-max_ckpt_to_keep])] if max_ckpt_to_keep else [])

    monkeypatch.setattr(BaseCheckpointManager, "register_checkpoint", register)


@mutant("retention-after-resume", "changed")
def disk_is_full(monkeypatch):
    import torch

    def save(*what):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", save)
