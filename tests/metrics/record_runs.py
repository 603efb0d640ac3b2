"""Records the metric files beside it, from real runs of TRL's and verl's trainers on a CPU; run it by hand.

    pytest --hw=cpu tests/metrics/record_runs.py [--rl-long]

Each TRL run leaves ``trl-NAME.json`` (transformers' trainer state), some also what the trainer prints and its
TensorBoard file. verl's leave the lines of its file logger, the sound one its console too.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_rlregress.fixtures.step_record import StepSettings

HERE = Path(__file__).parent
#: What is kept of a line of verl's file logger: all but times, memory and lengths of whole sequences.
#: What is kept of verl's console: some steps, and the settings.
CONSOLE = re.compile(r"step:[1-4] |'(ppo_epochs|ppo_mini_batch_size|train_batch_size)'")
KEPT = ("actor/", "critic/", "response", "rollout_corr/", "training/")


def no_sync(trainer):
    from pytest_rlregress.fixtures.trl_on_cpu import send_by

    send_by(trainer, lambda llm, weights: None)


def other_temperature(trainer):
    trainer.vllm_generation.temperature = 0.7


def reward_of(value):
    def alter(trainer):
        trainer.reward_funcs[0] = lambda completions, **columns: [value] * len(completions)

    return alter


def gradient_not_a_number(trainer):
    calls = []

    def hook(gradient):
        calls.append(1)
        return gradient * float("nan") if len(calls) == 4 else gradient

    trainer.model.get_parameter("model.layers.0.self_attn.o_proj.weight").register_hook(hook)


def copies_of_one(trainer):
    """Every completion of a group is its first one, as with a seed that each request of the group was given."""
    sound = trainer._generate_single_turn
    size = trainer.num_generations

    def generate(*arguments, **options):
        return tuple(
            [part[i - i % size] for i in range(len(part))] if isinstance(part, list) and len(part) > size else part
            for part in sound(*arguments, **options)
        )

    trainer._generate_single_turn = generate


def one_sync(trainer):
    """The first sync of a process arrives, those behind it do not."""
    from pytest_rlregress.fixtures.trl_on_cpu import send_by
    from pytest_rlregress.remedies.rollout import reload_weights

    sent = []

    def send(llm, weights):
        if not sent:
            reload_weights(llm, weights)
        sent.append(1)

    send_by(trainer, send)


def one_sync_resumed(trainer):
    one_sync(trainer)
    trainer.train = functools.partial(trainer.train, resume_from_checkpoint=True)


def dropout(trainer):
    for module in trainer.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.2


def right_or_wrong(alter):
    """Rewards of 0 and 1 only, then ``alter``."""

    def both(trainer):
        reward = trainer.reward_funcs[0]
        trainer.reward_funcs[0] = lambda **columns: [float(one > 0.5) for one in reward(**columns)]
        alter(trainer)

    return both


def sound(trainer):
    pass


#: Name -> what is altered of the trainer, and settings of its run. Two updates a rollout have no record a step.
TWICE = {"mode": "hf", "num_iterations": 2, "observe": False}
RUNS = {
    "sound": (sound, {"report_to": ["tensorboard"]}),
    "sound-transformers": (sound, {"mode": "hf", "learning_rate": 1e-5, "warmup_steps": 3}),
    "sound-two-updates": (sound, TWICE | {"beta": 0.04, "epsilon": 1e-4}),
    "no-sync": (no_sync, {}),
    "one-sync": (one_sync, {"steps": 6, "save_strategy": "steps", "save_steps": 5}),
    "temperature": (other_temperature, {}),
    "zero-reward": (reward_of(0.0), {"mode": "hf"}),
    "equal-rewards": (reward_of(0.5), {"mode": "hf"}),
    "one-seed": (right_or_wrong(copies_of_one), {"mode": "hf"}),
    "nan-gradient": (gradient_not_a_number, {"steps": 8}),
    "dropout": (dropout, TWICE | {"epsilon": 1e-4}),
    "never-ends": (sound, {"mode": "hf", "max_completion_length": 2}),
}


@pytest.mark.isolated(group="metrics", timeout=300)
@pytest.mark.needs("trl", "datasets", "vllm")
@pytest.mark.parametrize("name", RUNS)
def test_trl(trl_step, name, monkeypatch):
    from pytest_rlregress.fixtures import trl_step as trainers

    alter, settings = RUNS[name]
    settings = {"steps": 10, "mode": "colocate"} | settings
    if not settings.pop("observe", True):
        monkeypatch.setattr(trainers.TrlRecorder, "observe", lambda recorder: [])
    record(trl_step, f"trl-{name}", alter, settings)
    if name == "one-sync":
        record(
            trl_step, "trl-one-sync-resumed", one_sync_resumed, settings | {"steps": 10, "report_to": ["tensorboard"]}
        )


def record(trl_step, name, alter, settings):
    from transformers.trainer_callback import PrinterCallback

    kept = []
    printed = io.StringIO()

    def keep(trainer):
        kept.append(trainer)
        alter(trainer)

        class Printer(PrinterCallback):
            def on_log(self, *arguments, logs=None, **rest):
                with contextlib.redirect_stdout(printed):
                    super().on_log(*arguments, logs=dict(logs), **rest)

        trainer.add_callback(Printer())

    trl_step.run(alter=keep, **settings)
    kept[0].state.save_to_json(HERE / f"{name}.json")
    if name == "trl-sound":
        (HERE / f"{name}.log").write_text(printed.getvalue())
    if "report_to" in settings:
        [events] = trl_step.folder.rglob("events.out.tfevents.*")
        shutil.copy(events, HERE / f"{name}.tfevents")


ACTOR = "actor_rollout_ref.actor"
#: A reward function of verl's, by what it returns instead of ``score``.
REWARD = """
from pytest_rlregress.fixtures import verl_reward
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    score = verl_reward.compute_score(data_source, solution_str, ground_truth)
    return {}
"""
BROKEN = {1: "the head not synced", 3: "half a sync", 6: "temperature left out by the engine"}
#: Name -> steps, settings of verl, and what its reward function returns. The first broken syncs show in steps 2 and 4.
VERL_RUNS = {
    "sound": (6, {}, "score"),
    "sound-one-update": (10, {f"{ACTOR}.ppo_mini_batch_size": 4}, "score"),
    "broken-syncs": (6, {}, "score"),
    "zero-reward": (10, {}, "0.0"),
    "nan-reward": (6, {}, "float('nan') if score > 0.8 else score"),
}


@pytest.mark.long
@pytest.mark.isolated(timeout=900)
@pytest.mark.needs("verl-trainer", "ray-cluster", "vllm-engine")
@pytest.mark.parametrize("name", VERL_RUNS)
def test_verl(name, progress, tmp_path, monkeypatch):
    import verl_mutants

    from pytest_rlregress.fixtures import verl_reader, verl_settings, verl_step

    # It wants numbers, which not all of these runs log.
    monkeypatch.setattr(verl_reader, "RunReader", lambda *_: SimpleNamespace(read_steps=tuple))
    steps, settings, returned = VERL_RUNS[name]
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD.format(returned))
    settings = settings | {"reward.custom_reward_function.path": reward}
    logs = []
    with verl_step.start(
        StepSettings(prompts=4, samples_per_prompt=4), True, say=progress, watch_log=logs.append
    ) as trainer:
        modules = ["verl_mutants"] if name == "broken-syncs" else []
        environment = {"PYTHONPATH": str(HERE.parent / "support"), verl_mutants.VARIABLE: json.dumps(BROKEN)}
        trainer.run(steps, settings=settings, environment=environment, modules=modules)
        rows = map(json.loads, (trainer.folder / "0" / verl_settings.METRICS_FILE).read_text().splitlines())
        kept = [row | {"data": {k: v for k, v in row["data"].items() if k.startswith(KEPT)}} for row in rows]
        (HERE / f"verl-{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in kept))
        if name.startswith("sound"):
            lines = logs[0].read_text().splitlines(keepends=True)
            (HERE / f"verl-{name}.log").write_text("".join(line for line in lines if CONSOLE.search(line)))
