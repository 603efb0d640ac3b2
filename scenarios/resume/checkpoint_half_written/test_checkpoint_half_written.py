import resource
import shutil
from contextlib import contextmanager

import pytest

from pytest_rlregress.failures.act import act

pytestmark = pytest.mark.needs("accelerate")
STEPS = 3
# Writing the file ends where it has so many bytes: of 1.7 MB of weights, of 3.4 MB of the optimiser's state.
FULL_IN = pytest.mark.parametrize("bytes_left", [1_000_000, 2_000_000], ids=["weights", "optimizer"])


@contextmanager
def no_file_longer_than(count):
    """The limit of this process, as ``ulimit -f`` sets it: it stands for a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def trainer(folder, tiny_model, steps=STEPS):
    from transformers import Trainer, TrainingArguments, set_seed

    set_seed(0)
    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, save_steps=1, use_cpu=True, report_to=[], logging_strategy="no", disable_tqdm=True
    )
    rows = [{"input_ids": [*range(i, i + 4)], "labels": [*range(i, i + 4)]} for i in range(4, 64)]
    made = Trainer(tiny_model("qwen2").model(), arguments, train_dataset=rows)
    made.add_callback(stop_after(steps))
    return made


def stop_after(steps):
    from transformers import TrainerCallback

    class StopAfter(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            control.should_training_stop = state.global_step >= steps

    return StopAfter()


def disk_is_full_at_step_2(folder, tiny_model, bytes_left):
    trainer(folder, tiny_model, steps=1).train()
    with no_file_longer_than(bytes_left), pytest.raises(Exception, match=r"too large|unexpected pos"):
        trainer(folder, tiny_model).train(resume_from_checkpoint=str(folder / "checkpoint-1"))


@pytest.mark.reproduces("checkpoint-half-written")
@FULL_IN
def test_resume(tiny_model, tmp_path, bytes_left):
    disk_is_full_at_step_2(tmp_path, tiny_model, bytes_left)
    resumed = trainer(tmp_path, tiny_model)
    with act():
        resumed.train(resume_from_checkpoint=True)


def weights_of(trained):
    return {name: weight.clone() for name, weight in trained.model.state_dict().items()}


@pytest.mark.guards("checkpoint-half-written")
@FULL_IN
def test_resume_from_the_last_whole_one(subject, tiny_model, tmp_path, bytes_left):
    """The weights are those of a run that nothing happened to."""
    folder, path = tmp_path / "run", tmp_path / "run" / "checkpoint-1"
    disk_is_full_at_step_2(folder, tiny_model, bytes_left)
    with act():
        assert subject(folder) == path
    resumed, undisturbed = trainer(folder, tiny_model), trainer(tmp_path / "undisturbed", tiny_model)
    resumed.train(resume_from_checkpoint=str(subject(folder)))
    undisturbed.train()
    weights = weights_of(undisturbed)
    assert all(weight.equal(weights[name]) for name, weight in weights_of(resumed).items())
    assert subject(folder).name == "checkpoint-3"


@pytest.mark.guards("checkpoint-half-written")
def test_passes_over_a_checkpoint_with_a_cut_file(subject, tiny_model, tmp_path):
    """Any of the files that are read, as a copy leaves it that was broken off."""
    trainer(tmp_path, tiny_model, steps=2).train()
    one, two = (tmp_path / f"checkpoint-{step}" for step in (1, 2))
    files = [path for path in two.iterdir() if path.suffix != ".txt"]
    with act():
        assert subject(tmp_path) == subject(tmp_path, 2) == two, "there are no shards: any number of processes reads it"
    assert {path.name for path in files} >= {"model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"}
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-8])
        assert subject(tmp_path) == one, file.name
        file.write_bytes(whole)
    assert subject(tmp_path) == two
    for path in (one, two):
        (path / "trainer_state.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-2: no trainer_state.json.*checkpoint-1: no trainer_state.json"):
        subject(tmp_path)
    shutil.rmtree(one)
    shutil.rmtree(two)
    assert subject(tmp_path) is None
