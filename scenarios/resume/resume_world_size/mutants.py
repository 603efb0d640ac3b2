"""Broken remedies of resume-world-size, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.resume import latest_checkpoint


@broken(only="test_refused_beforehand")
def any_number_of_ranks(folder, ranks=None):
    return latest_checkpoint(folder)


@broken(only="test_shard_of_a_rank_is_missing")
def first_rank_will_do(folder, ranks=None):
    return next(folder.glob(f"global_step_9/actor/model_world_size_{ranks or '*'}_rank_0.pt")).parents[1]


@mutant("absent")
def verl_begins_with_other_weights(monkeypatch):
    from pathlib import Path

    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    load = FSDPCheckpointManager.load_checkpoint

    def load_own(self, local_path, **keywords):
        if any(Path(local_path).glob(f"model_world_size_{self.world_size}_*")):
            load(self, local_path, **keywords)

    monkeypatch.setattr(FSDPCheckpointManager, "load_checkpoint", load_own)


@mutant("changed")
def verl_counts_the_shards(monkeypatch):
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    def load(self, *places, **keywords):
        raise RuntimeError(f"saved by another number of ranks than {self.world_size}")

    monkeypatch.setattr(FSDPCheckpointManager, "load_checkpoint", load)
