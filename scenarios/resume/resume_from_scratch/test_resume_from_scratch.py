import shutil

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.resume.verl_run import verl_run
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 on torch 2.13
TRACKER = "latest_checkpointed_iteration.txt"
# What happened between the two runs, and the step to go on from; by its name global_step_9 would come after _10.
CHANGES = {
    "nothing": (lambda folder: None, 10),
    "tracker-left-behind": (lambda folder: (folder / TRACKER).unlink(), 10),
    "tracker-empty": (lambda folder: (folder / TRACKER).write_text(""), 10),
    "newest-removed": (lambda folder: shutil.rmtree(folder / "global_step_10"), 9),
    "newest-without-actor": (lambda folder: shutil.rmtree(folder / "global_step_10" / "actor"), 9),
}


def saved(folder, tiny_model, steps=(9, 10)):
    """The weights that a run had when it saved, by step."""
    with verl_run(folder, tiny_model("qwen2")) as run:
        return {step: run.train(step) for step in steps}


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.reproduces("resume-from-scratch")
@pytest.mark.parametrize("change", ["tracker-left-behind", "newest-removed"])
def test_auto(tiny_model, tmp_path, change):
    saved(tmp_path, tiny_model)
    happens, step = CHANGES[change]
    happens(tmp_path)
    with verl_run(tmp_path, tiny_model("qwen2")) as run, act():
        resumed = run.resume()
    if not resumed >= step:
        assert resumed == 0
        silent(f"there is a checkpoint of step {step}, and the run begins at step {resumed}")


@pytest.mark.reproduces("resume-from-scratch", fidelity="injected")
def test_empty_tracker(tiny_model, tmp_path):
    """As the process leaves it that dies, or has a full disk, between opening the file and writing it."""
    saved(tmp_path, tiny_model, [9])
    CHANGES["tracker-empty"][0](tmp_path)
    with verl_run(tmp_path, tiny_model("qwen2")) as run, act():
        run.resume()


@pytest.mark.reproduces("resume-from-scratch")
def test_path_with_a_slash(tiny_model, tmp_path):
    """As a shell completes it."""
    saved(tmp_path, tiny_model, [9])
    with verl_run(tmp_path, tiny_model("qwen2")) as run, act():
        run.resume(f"{tmp_path}/global_step_9/")


@pytest.mark.guards("resume-from-scratch")
@pytest.mark.needs("verl")
@pytest.mark.parametrize("change", CHANGES)
def test_newest_that_is_there(subject, tiny_model, tmp_path, monkeypatch, change):
    weights = saved(tmp_path, tiny_model)
    happens, step = CHANGES[change]
    happens(tmp_path)
    before = contents(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    with act():
        path = subject(tmp_path.relative_to(tmp_path.parent))
    monkeypatch.chdir("/")
    assert contents(tmp_path) == before
    (tmp_path / TRACKER).unlink(missing_ok=True)  # verl 0.7 reads an empty one in any mode
    with verl_run(tmp_path, tiny_model("qwen2")) as run:
        assert run.resume(str(path)) == step
        assert all(map(torch.equal, run.weights(), weights[step]))
