import shutil

from mutants import broken, replaces


@broken(only="alone-1")
def removes_nothing(folder, keep):
    return []


@broken(only="test_removes_whole")
def by_name(folder, keep):
    paths = sorted(folder.glob("global_step_*"), key=str)[:-keep]
    for path in paths:
        shutil.rmtree(path)
    return paths


@replaces("absent", "verl.utils.checkpoint.checkpoint_manager.BaseCheckpointManager.register_checkpoint")
def verl_looks_at_the_disk(self, new_path, max_ckpt_to_keep):
    from pathlib import Path

    actors = sorted(Path(new_path).parents[1].glob("*/actor"), key=lambda path: int(path.parent.name[12:]))
    self.remove_previous_save_local_path([*map(str, actors[:-max_ckpt_to_keep])] if max_ckpt_to_keep else [])


@replaces("changed", "torch.save")
def disk_is_full(*what):
    raise OSError(28, "No space left on device")
