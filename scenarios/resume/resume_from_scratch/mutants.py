from pathlib import Path

from mutants import broken, replaces
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


replaces("absent", "verl.trainer.ppo.v1.trainer_base.find_latest_ckpt_path", only="tracker-left-behind")(
    lambda folder: str(latest_checkpoint(Path(folder)))
)


@replaces("changed", "verl.trainer.ppo.v1.trainer_base.find_latest_ckpt_path", only="test_auto")
def verl_refuses(folder):
    raise RuntimeError("no tracker file")
