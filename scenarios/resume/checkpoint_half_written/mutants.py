from pathlib import Path

from mutants import broken, replaces
from pytest_rlregress.remedies.resume import latest_checkpoint


@broken(only="test_resume_from_the_last_whole_one")
def as_transformers_does(folder, ranks=None):
    from transformers.trainer_utils import get_last_checkpoint

    return folder / get_last_checkpoint(folder)


@broken(only="test_passes_over")
def last_file_is_there(folder, ranks=None):
    there = sorted(path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file())
    return there[-1] if there else latest_checkpoint(folder)


replaces("absent", "transformers.trainer.get_last_checkpoint", only="optimizer")(
    lambda folder: str(latest_checkpoint(Path(folder)))
)


@replaces("changed", "transformers.trainer.get_last_checkpoint", only="optimizer")
def transformers_refuses(folder):
    raise RuntimeError(f"{folder}: the newest checkpoint is not whole")
