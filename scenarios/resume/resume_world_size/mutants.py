from mutants import broken, replaces
from pytest_rlregress.remedies.resume import latest_checkpoint


@broken(only="test_rejects_another")
def any_number_of_ranks(folder, ranks=None):
    return latest_checkpoint(folder)


@broken(only="test_rejects_a_missing")
def first_rank_will_do(folder, ranks=None):
    return next(folder.glob(f"global_step_9/actor/model_world_size_{ranks or '*'}_rank_0.pt")).parents[1]


@replaces("absent", "verl.utils.checkpoint.fsdp_checkpoint_manager.FSDPCheckpointManager.load_checkpoint")
def verl_begins_with_other_weights(original, self, local_path, **keywords):
    from pathlib import Path

    if any(Path(local_path).glob(f"model_world_size_{self.world_size}_*")):
        original(self, local_path, **keywords)


@replaces("changed", "verl.utils.checkpoint.fsdp_checkpoint_manager.FSDPCheckpointManager.load_checkpoint")
def verl_counts_the_shards(self, *places, **keywords):
    raise RuntimeError(f"saved by another number of ranks than {self.world_size}")
