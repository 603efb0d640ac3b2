"""Real runs of TRL's, watched as they are: a sound one is sound and ends early, a broken one is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlregress.fixtures import arithmetic
from pytest_rlregress.fixtures.tiny_qwen import build

pytestmark = [pytest.mark.nightly, pytest.mark.needs("trl-trainer", "datasets")]

REWARD = """
def letters(completions, answer, **columns):
    texts = [one[0]["content"] if isinstance(one, list) else one for one in completions]
    return [1.0 if text == right else -abs(len(text) - 20) / 100 for text, right in zip(texts, answer)]
"""
SCRIPT = """
import json, os
from contextlib import nullcontext
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from own_rewards import letters
from pytest_rlregress.fixtures import trl_on_cpu

json.dump(dict(os.environ), open(f"environment{{os.environ.get('RANK', 0)}}.json", "w"))
options = dict(output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=2, max_completion_length=16,
               learning_rate=1e-5, use_cpu=True, bf16=False, report_to=[], max_steps=6, logging_steps=50)
options |= dict({config})
mode = "colocate" if options.get("use_vllm") else "hf"
with trl_on_cpu.while_built(mode):
    trainer = GRPOTrainer(model=os.environ["OWN_MODEL"], reward_funcs=letters, args=GRPOConfig(**options),
                          train_dataset=load_dataset("json", data_files="data/train.jsonl", split="train"))
trl_on_cpu.take_weights(trainer, mode)
{change}
trainer.train()
open(f"done{{os.environ.get('RANK', 0)}}", "w").write(str(trainer.state.global_step))
trainer.save_model("final")
"""


@pytest.fixture
def watch(tmp_path):
    """Watch a command in a folder that has data, a reward function and a script: its document."""
    (tmp_path / "data").mkdir()
    rows = [{"prompt": [*one.messages], "answer": "a" * one.answer} for one in arithmetic.problems(40, 16, 0)]
    (tmp_path / "data/train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "own_rewards.py").write_text(REWARD, encoding="utf-8")
    (tmp_path / "run.sh").write_text("python train.py\n", encoding="utf-8")
    folder = str(Path(sys.executable).parent)
    environ = {**os.environ, "OWN_MODEL": str(build("tiny").directory), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environ["PATH"] = f"{folder}{os.pathsep}{environ['PATH']}"
    environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

    def run(*command, change="", config=""):
        (tmp_path / "train.py").write_text(SCRIPT.format(change=change, config=config), encoding="utf-8")
        rlregress = [f"{folder}/rlregress", "rehearse", "--as-is", "--steps", "2", "--json", "--keep", "kept", "--"]
        ended = subprocess.run(
            [*rlregress, *(command or ("python", "train.py"))],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
        )
        document = json.loads(ended.stdout)
        assert document["exit_code"] == ended.returncode
        for file in tmp_path.glob("environment*.json"):
            seen = json.loads(file.read_text())
            assert {name for name in environ if seen.get(name) != environ[name]} <= {"PYTHONPATH", "_", "PWD", "SHLVL"}
        return document

    return run


def check_sound(document):
    assert document["findings"] == []
    assert document["errors"] == []
    assert document["changes"] == []
    assert document["result"] == "clean", document["sentence"]
    checks = {one["check"]: one["status"] for one in document["checks"]}
    assert {checks[name] for name in ("updates", "groups", "mask", "advantages", "gradient", "update")} == {"ok"}
    assert "2 steps of your trainer are sound in all that was watched" in document["sentence"]
    assert document["watching_share"] > 0


def test_run_sh(watch, tmp_path):
    document = watch("bash", "run.sh")
    check_sound(document)
    assert (tmp_path / "done0").read_text() == "2"
    assert (tmp_path / "final/model.safetensors").exists(), "the user's own saving is left as it is"
    assert {one["check"] for one in document["not_checked"]} >= {"second pass", "sync", "resume", "loss"}
    assert all(one["why"] for one in document["not_checked"])


def test_trl_grpo(watch, tmp_path):
    (tmp_path / "grpo.yaml").write_text(
        f"model_name_or_path: {build('tiny').directory}\ndataset_name: {tmp_path}/data\ndtype: float32\n"
        "reward_funcs: [own_rewards.letters]\nlearning_rate: 1.0e-5\nuse_cpu: true\nbf16: false\nreport_to: []\n"
        "per_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nmax_completion_length: 16\nmax_steps: 6\n"
        "num_processes: 1\nbeta: 0.04\noutput_dir: out\n",
        encoding="utf-8",
    )
    document = watch("trl", "grpo", "--config", "grpo.yaml")
    check_sound(document)
    assert next(one for one in document["checks"] if one["check"] == "reference")["status"] == "ok"


def test_two_processes_stop_together(watch, tmp_path):
    document = watch("torchrun", "--nproc_per_node", "2", "train.py")
    check_sound(document)
    assert [(tmp_path / f"done{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
    assert {one["what"] for one in document["not_rehearsed"]} == {"the other processes' rows"}
    events = [json.loads(line) for line in (tmp_path / "kept/events.jsonl").read_text().splitlines()]
    assert [one["record"]["number"] for one in events if one["kind"] == "step"] == [1, 2]


PERMUTED = """
sound = trainer._generate_and_score_completions
def permuted(rows):
    batch = sound(rows)
    return {**batch, "advantages": batch["advantages"].view(-1, 8).roll(1, 1).flatten()}
trainer._generate_and_score_completions = permuted
"""
ROUNDED = """
sound = trainer._calculate_rewards
trainer._calculate_rewards = lambda *rows: sound(*rows).round(decimals=1)
"""
MIXED = """
from torch.utils.data import SequentialSampler
trainer._get_train_sampler = lambda *_: SequentialSampler(trainer.train_dataset)
"""


@pytest.mark.parametrize(
    ("check", "change"),
    [("advantages", PERMUTED), ("rewards used", ROUNDED), ("groups", MIXED)],
    ids=["advantages permuted", "rewards rounded", "groups of a sampler of one's own"],
)
def test_a_changed_trainer_turns_red(watch, check, change):
    document = watch(change=change)
    assert document["exit_code"] == 1
    assert check in [one["check"] for one in document["findings"]]


def test_an_observer_that_always_fails_ends_no_run(watch, tmp_path):
    change = """
from pytest_rlregress.commands.rehearse import as_is_watch, guard
def fail(*arguments, **named): raise ZeroDivisionError("on purpose")
for name in [name for name, one in vars(as_is_watch.AsIsRecorder).items() if hasattr(one, "__wrapped__")]:
    clean = guard.guarded if name in ("wait", "on_train_end") else as_is_watch.counted
    fail.__name__ = name
    setattr(as_is_watch.AsIsRecorder, name, clean(fail))
"""
    document = watch(change=change)
    assert (tmp_path / "done0").read_text() == "2"
    assert (tmp_path / "final/model.safetensors").exists()
    assert document["findings"] == []
    assert document["errors"] == ["ZeroDivisionError: on purpose"]
    assert document["exit_code"] == 2


@pytest.mark.needs("vllm-engine")
@pytest.mark.parametrize("change", ["", "trainer.vllm_generation.temperature = 0.5"], ids=["sound", "temperature"])
def test_the_engines_own_log_probabilities(watch, change):
    document = watch(change=change, config="use_vllm=True, vllm_mode='colocate', vllm_max_model_length=512")
    row = next(one for one in document["checks"] if one["check"] == "agreement")
    assert document["errors"] == []
    assert (row["status"], document["exit_code"]) == (("finding", 1) if change else ("ok", 0))
