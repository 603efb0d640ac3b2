"""The recorder of a real run in a trainer: the run is the same with it, and with each of its methods failing."""

from __future__ import annotations

import json

import pytest

from pytest_rlregress.commands.rehearse.judge import judge
from pytest_rlregress.fixtures import arithmetic
from pytest_rlregress.fixtures.tiny_qwen import build

pytestmark = pytest.mark.needs("trl-trainer", "datasets")

#: Each is called by the trainer in the course of a run.
METHODS = (
    *("observe", "watch_functions", "begin_rollout", "note_rewards", "end_rollout", "note_logprobs", "begin_loss"),
    *("end_loss", "on_step_begin", "on_pre_optimizer_step", "wait", "end_step", "finish_step", "on_train_end"),
)


def give_lengths(completions, **columns):
    return [float(len(str(one))) for one in completions]


def run_trainer(folder, is_watched, **changed):
    """Train two steps, of six where a recorder ends the run; return the weights."""
    import torch
    from datasets import Dataset
    from transformers import set_seed
    from trl import GRPOConfig, GRPOTrainer

    from pytest_rlregress.commands.rehearse import as_is

    options = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 4, "use_cpu": True}
    options |= {"learning_rate": 1e-4, "bf16": False, "report_to": [], "logging_steps": 50, "save_strategy": "no"}
    options |= {"max_steps": 6 if is_watched else 2, "lr_scheduler_type": "constant"}
    set_seed(0)
    trainer = GRPOTrainer(
        model=str(build("tiny").directory),
        reward_funcs=give_lengths,
        args=GRPOConfig(output_dir=str(folder / "out"), **{**options, **changed}),
        train_dataset=Dataset.from_list([{"prompt": [*one.messages]} for one in arithmetic.problems(16, 16, 0)]),
    )
    if is_watched:
        as_is.begin(trainer)
    trainer.train()
    assert trainer.state.global_step == 2
    assert trainer.reward_funcs == [give_lengths]
    return torch.cat([one.detach().flatten() for one in trainer.model.parameters()])


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The weights of a run that nobody watches."""
    return run_trainer(tmp_path_factory.mktemp("unwatched"), False)


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train two of six steps, watched: the weights, and what was written down."""
    from pytest_rlregress.commands.rehearse import events

    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(events.STEPS_VARIABLE, "2")
    return lambda **changed: (run_trainer(tmp_path, True, **changed), list(events.read(tmp_path)))


def test_a_watched_run_is_the_same_run(weights, train):
    watched, found = train()
    assert weights.equal(watched)
    assert [one["kind"] for one in found] == ["as_is", "step", "step", "cost"]


def test_of_rollouts_that_several_steps_train_on(train):
    _, found = train(steps_per_generation=2)
    records = [one["record"] for one in found if one["kind"] == "step"]
    assert "in several steps" in records[0]["not_seen"]["advantages"]
    assert "advantages" not in records[1]["not_seen"]
    assert "ratio" not in records[0]["not_seen"]
    assert records[0]["ratio_difference"] < 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_an_error_of_the_observer_is_told_and_ends_nothing(weights, train, monkeypatch, name):
    from pytest_rlregress.commands.rehearse import as_is_watch
    from pytest_rlregress.commands.rehearse.guard import guarded

    method = getattr(as_is_watch.AsIsRecorder, name)

    def fail(*arguments, **named):
        raise ZeroDivisionError("on purpose")

    fail.__name__ = name
    cleans = {"observe": lambda one: one, "wait": guarded, "on_train_end": guarded}
    assert name == "observe" or hasattr(method, "__wrapped__"), "an error of it would end the run"
    monkeypatch.setattr(as_is_watch.AsIsRecorder, name, cleans.get(name, as_is_watch.counted)(fail))
    watched, found = train()
    assert weights.equal(watched)
    told = [one for one in found if one["kind"] == "observer"]
    assert told
    assert all(one["trace"].endswith("\n") for one in told)
    assert any("on purpose" in one["trace"] for one in told)
    judged = judge(found)
    assert judged.findings == ()
    assert judged.broken


def test_all_that_looks_at_a_run_is_guarded():
    from pytest_rlregress.commands.rehearse.as_is_watch import AsIsRecorder

    parts = {"__init__", "observe", "_wrap", "_watch_rewards", "on_step_end", "write_record"}
    unguarded = {name for name, one in vars(AsIsRecorder).items() if callable(one) and not hasattr(one, "__wrapped__")}
    assert unguarded == parts
    assert set(METHODS) == {name for name, one in vars(AsIsRecorder).items() if hasattr(one, "__wrapped__")} | {
        "observe"
    }


def test_where_nothing_can_be_written_the_run_goes_on(weights, train, monkeypatch, tmp_path):
    from pytest_rlregress.commands.rehearse import events

    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path / "missing"))
    watched, _ = train()
    assert weights.equal(watched)
    assert json.dumps(list(events.read(tmp_path))) == "[]"
