import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.resume.verl_run import verl_run
from pytest_rlregress.stack.lazy import torch

# torchdata 0.11 on torch 2.13
pytestmark = [pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"), pytest.mark.needs("verl")]
KEEP = pytest.mark.parametrize("keep", [1, 2])


def actors(folder):
    """The steps whose weights are on the disk."""
    return sorted(int(path.parent.name.removeprefix("global_step_")) for path in folder.glob("global_step_*/actor"))


@pytest.fixture(autouse=True)
def built(tiny_model, tmp_path):
    """A run is built once, before any act: whether this release of verl can be driven so."""
    with verl_run(tmp_path / "built", tiny_model("qwen2")):
        pass


def run_and_resume(folder, tiny_model, keep, after_save=lambda: None):
    for steps in ((8, 9), (10, 11)):
        with verl_run(folder, tiny_model("qwen2"), keep=keep) as run:
            run.resume()
            for step in steps:
                run.train(step)
                after_save()


@pytest.mark.reproduces("retention-after-resume")
@KEEP
def test_checkpoints_to_keep(tiny_model, tmp_path, keep):
    with act():
        run_and_resume(tmp_path, tiny_model, keep)
    kept = actors(tmp_path)
    if not len(kept) <= keep:
        silent(f"max_actor_ckpt_to_keep={keep}, and {len(kept)} are kept: of steps {kept}")


@pytest.mark.guards("retention-after-resume")
@KEEP
@pytest.mark.parametrize("own", [True, False], ids=["with-verl's", "alone"])
def test_as_many_as_asked_for(subject, tiny_model, tmp_path, keep, own):
    run_and_resume(tmp_path, tiny_model, keep if own else None, lambda: subject(tmp_path, keep))
    assert actors(tmp_path) == [10, 11][-keep:]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {f"global_step_{s}" for s in actors(tmp_path)}
    with verl_run(tmp_path, tiny_model("qwen2")) as run:
        initial = run.weights()
        assert run.resume() == 11
        assert not any(map(torch.equal, run.weights(), initial))


@pytest.mark.guards("retention-after-resume")
def test_checkpoints_of_the_sft_trainer(subject, tiny_model, tmp_path):
    """Its shards are in global_step_N itself, and data_0.pt, of its first data rank, comes last."""
    with verl_run(tmp_path, tiny_model("qwen2")) as run:
        for step in (8, 9, 10):
            run.actor.save_checkpoint(local_path=str(tmp_path / f"global_step_{step}"), global_step=step)
            if step < 10:  # which is being written
                torch.save({}, tmp_path / f"global_step_{step}" / "data_0.pt")
    with act():
        assert subject(tmp_path, 1) == [tmp_path / "global_step_8"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_10", "global_step_9"]


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.guards("retention-after-resume")
def test_removes_whole_old_checkpoints_only(subject, tiny_model, tmp_path):
    """By number; what is being written, what is not whole among those kept, and what isn't a checkpoint."""
    with verl_run(tmp_path, tiny_model("qwen2")) as run:
        for step in (8, 9, 10, 100):
            run.train(step)
    for step in (7, 99, 101):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
    for name in ("global_step_best", "wandb"):
        (tmp_path / name).mkdir()
    (tmp_path / "wandb" / "debug.log").write_text("step 8")
    everything, contents = {path.name for path in tmp_path.iterdir()}, files_in(tmp_path)
    with act():
        for keep in (0, -1):
            with pytest.raises(ValueError, match=rf"keep={keep}\b"):
                subject(tmp_path, keep)
    assert subject(tmp_path, 5) == []
    assert files_in(tmp_path) == contents
    removed = subject(tmp_path, 4)
    assert removed == [tmp_path / "global_step_7"]
    removed += subject(tmp_path, 2)
    assert removed == [tmp_path / f"global_step_{step}" for step in (7, 8, 9)]
    assert {path.name for path in tmp_path.iterdir()} == everything - {path.name for path in removed}
    assert files_in(tmp_path).items() <= contents.items()
    assert subject(tmp_path, 2) == []
    assert subject(tmp_path / "not-made-yet", 1) == []
