"""Whole rehearsals of TRL's commands: a sound one is sound, and each change of its trainer turns the green red."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlregress.commands.rehearse.rehearse_command import STEPS
from pytest_rlregress.fixtures import arithmetic
from pytest_rlregress.fixtures.tiny_qwen import build

pytestmark = [pytest.mark.nightly, pytest.mark.needs("trl-trainer", "datasets", "vllm-engine")]

REWARD = """
def letters(completions, answer, **columns):
    texts = [one[0]["content"] if isinstance(one, list) else one for one in completions]
    return [1.0 if text == right else -abs(len(text) - 20) / 100 for text, right in zip(texts, answer)]
"""
SCRIPT = """
import os
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from own_rewards import letters

config = GRPOConfig(output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=2, bf16=True,
                    max_completion_length=128, learning_rate=1e-5, use_vllm=True, gradient_checkpointing=False{config})
trainer = GRPOTrainer(model=os.environ["OWN_MODEL"], reward_funcs=letters, args=config,
                      train_dataset=load_dataset("json", data_files="data/train.jsonl", split="train"))
{change}
trainer.train()
trainer.save_model("final")
"""


@pytest.fixture
def rehearse(tmp_path):
    """Run a rehearsal in a folder that has data, a reward function and a script: its document."""
    (tmp_path / "data").mkdir()
    rows = [{"prompt": [*one.messages], "answer": "a" * one.answer} for one in arithmetic.problems(40, 16, 0)]
    (tmp_path / "data/train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "own_rewards.py").write_text(REWARD, encoding="utf-8")
    folder = str(Path(sys.executable).parent)
    environ = {**os.environ, "OWN_MODEL": str(build("tiny").directory), "HF_HUB_OFFLINE": "1"}
    environ["PATH"] = f"{folder}{os.pathsep}{environ['PATH']}"

    def run(*command, change="", config=""):
        (tmp_path / "train.py").write_text(SCRIPT.format(change=change, config=config), encoding="utf-8")
        before = sorted(path.name for path in tmp_path.iterdir())
        ended = subprocess.run(
            [f"{folder}/rlregress", "rehearse", "--json", "--", *(command or ("python", "train.py"))],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
        )
        after = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
        assert after == {*before} - {"__pycache__"}, "the user's folder was written to"
        document = json.loads(ended.stdout)
        assert document["exit_code"] == ended.returncode
        assert document["errors"] == [], document["errors"]
        assert document["processes_left"] == 0
        return document

    return run


def check_sound(document):
    assert document["findings"] == []
    assert document["result"] == "clean", document["sentence"]
    checks = {one["check"]: one["status"] for one in document["checks"]}
    assert len([one for one in checks.values() if one == "ok"]) >= 15
    assert {checks[name] for name in ("updates", "advantages", "gradient", "update", "resume", "checkpoint")} == {"ok"}
    assert f"{STEPS + 1} steps of your trainer are sound" in document["sentence"]


def test_trl_grpo(rehearse, tmp_path):
    (tmp_path / "grpo.yaml").write_text(
        f"model_name_or_path: {build('tiny').directory}\ndataset_name: {tmp_path}/data\n"
        "reward_funcs: [own_rewards.letters]\nlearning_rate: 1.0e-5\nuse_vllm: true\nbf16: true\nreport_to: wandb\n"
        "per_device_train_batch_size: 4\ngradient_accumulation_steps: 4\nnum_processes: 8\nwarmup_steps: 100\n",
        encoding="utf-8",
    )
    document = rehearse("trl", "grpo", "--config", "grpo.yaml")
    check_sound(document)
    assert {"8 processes", "bf16", "reporting to wandb"} <= {one["what"] for one in document["not_rehearsed"]}
    assert {"warmup_steps", "max_steps", "output_dir"} <= {one["key"] for one in document["changes"]}


def test_accelerate_launch_of_a_script(rehearse):
    document = rehearse("accelerate", "launch", "--num_processes", "4", "train.py", config=", beta=0.04")
    check_sound(document)
    assert next(one for one in document["checks"] if one["check"] == "reference")["status"] == "ok"


CHANGES = {
    "no sync": ("sync", "trainer.vllm_generation.sync_weights = lambda: None"),
    "advantages permuted": (
        "advantages",
        "sound = trainer._generate_and_score_completions\n"
        "def permuted(rows):\n"
        "    batch = sound(rows)\n"
        "    return {**batch, 'advantages': batch['advantages'].view(-1, 8).roll(1, 1).flatten()}\n"
        "trainer._generate_and_score_completions = permuted",
    ),
    "dropout": (
        "second pass",
        "for module in trainer.model.modules():\n"
        "    if hasattr(module, 'attention_dropout'): module.attention_dropout = 0.1",
    ),
    "old weights after resume": ("resume", "trainer._load_from_checkpoint = lambda *_, **__: None"),
}


@pytest.mark.parametrize(("check", "change"), CHANGES.values(), ids=CHANGES)
def test_a_changed_trainer_turns_red(rehearse, check, change):
    document = rehearse(change=change)
    assert document["exit_code"] == 1
    assert check in [one["check"] for one in document["findings"]]


def test_a_configuration_that_trl_refuses(rehearse):
    document = rehearse(config=", num_generations=7")
    assert document["exit_code"] == 1
    assert "must be divisible by num_generations (7)" in document["sentence"]
