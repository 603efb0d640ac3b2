"""Whole rehearsals of verl: a sound command is sound, each change of its trainer turns red, each mistake is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_rlregress.commands.rehearse import events
from pytest_rlregress.commands.rehearse.record import from_plain
from pytest_rlregress.fixtures import arithmetic
from pytest_rlregress.fixtures.step_record import find_complaints
from pytest_rlregress.fixtures.tiny_qwen import build
from pytest_rlregress.util import processes

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs("verl-trainer", "ray-cluster", "vllm-engine", "transfer-queue"),
]

SUPPORT = Path(__file__).parents[2] / "support"
REWARD = """
def letters(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str == ground_truth else -abs(len(solution_str) - len(ground_truth)) / 100

def nothing(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0 * len(ground_truth)
"""
ROLLOUT = "actor_rollout_ref.rollout"
SETTINGS = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "train.parquet",
    "data.val_files": "train.parquet",
    "data.train_batch_size": 64,
    "data.max_prompt_length": 128,
    "data.max_response_length": 1024,
    "actor_rollout_ref.model.path": "$OWN_MODEL",
    "actor_rollout_ref.actor.optim.lr": 1e-5,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 16,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 16,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 8,
    f"{ROLLOUT}.temperature": 0.9,
    "reward.custom_reward_function.path": "own_rewards.py",
    "reward.custom_reward_function.name": "letters",
    "trainer.n_gpus_per_node": 8,
}


@pytest.fixture
def environ(tmp_path):
    """Fill the folder with data and reward functions: the environment of a command there."""
    from pyarrow import Table, parquet

    rows = [
        {
            "data_source": "own",
            "prompt": [*one.messages],
            "reward_model": {"style": "rule", "ground_truth": "a" * one.answer},
        }
        for one in arithmetic.problems(80, 16, 0)
    ]
    parquet.write_table(Table.from_pylist(rows), tmp_path / "train.parquet")
    rows[70]["reward_model"]["ground_truth"] = None
    parquet.write_table(Table.from_pylist(rows), tmp_path / "none.parquet")
    without = [{**row, "question": row["prompt"]} for row in rows]
    without = [{name: value for name, value in row.items() if name != "prompt"} for row in without]
    parquet.write_table(Table.from_pylist(without), tmp_path / "questions.parquet")
    (tmp_path / "own_rewards.py").write_text(REWARD, encoding="utf-8")
    folder = str(Path(sys.executable).parent)
    environ = {**os.environ, "OWN_MODEL": str(build("tiny").directory), "HF_HUB_OFFLINE": "1"}
    return {**environ, "PATH": f"{folder}{os.pathsep}{environ['PATH']}"}


@pytest.fixture
def rehearse(tmp_path, environ):
    """Run a rehearsal in the folder: its document, and its steps."""

    def run(*, steps=2, is_script=False, variables=None, **settings):
        words = [f"{key}={value}" for key, value in {**SETTINGS, **settings}.items()]
        script = f"set -euxo pipefail\npip install verl\npython3 -m verl.trainer.main_ppo {' '.join(words)}\n"
        (tmp_path / "run.sh").write_text(script, encoding="utf-8")
        words = [word.replace("$OWN_MODEL", environ["OWN_MODEL"]) for word in words]
        command = ["bash", "run.sh"] if is_script else ["python3", "-m", "verl.trainer.main_ppo", *words]
        before, shared = {path.name for path in tmp_path.iterdir()}, set(os.listdir("/dev/shm"))
        kept = tmp_path.with_name(f"{tmp_path.name}-kept")
        ended = subprocess.run(
            ["rlregress", "rehearse", "--json", "--steps", str(steps), "--keep", kept, "--", *command],
            cwd=tmp_path,
            env={**environ, **(variables or {})},
            capture_output=True,
            text=True,
        )
        after = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
        assert after == before - {"__pycache__"}, "the user's folder was written to"
        assert {name for name in set(os.listdir("/dev/shm")) - shared if name.startswith("psm_")} == set()
        document = json.loads(ended.stdout)
        assert document["exit_code"] == ended.returncode
        assert document["errors"] == [], document["errors"]
        assert document["processes_left"] == 0
        records = [from_plain(event["record"]) for event in events.read(kept) if event["kind"] == "step"]
        return document, records

    return run


def read_checks(document):
    return {one["check"]: one["status"] for one in document["checks"]}


def test_a_script_of_verl_is_sound(rehearse):
    document, records = rehearse(is_script=True)
    assert document["findings"] == []
    assert document["result"] == "clean", document["sentence"]
    assert "2 steps of your trainer are sound" in document["sentence"]
    checks = read_checks(document)
    sound = (
        "updates",
        "checkpoint",
        "prompts",
        "advantages",
        "sync",
        "agreement",
        "ratio",
        "reference",
        "loss",
        "update",
    )
    assert {name: checks[name] for name in sound} == dict.fromkeys(sound, "ok")
    changes = {one["key"]: (one["old"], one["new"]) for one in document["changes"]}
    assert changes["data.train_batch_size"] == (64, 4)
    assert changes["actor_rollout_ref.actor.ppo_mini_batch_size"] == (32, 2)
    assert {"pip install verl", "8 processes", "resuming"} <= {one["what"] for one in document["not_rehearsed"]}
    assert [len(record.completions) for record in records] == [32, 32]


#: What is altered in a step, and the check that it turns red; a sync shows in the step whose sync it is.
CHANGES = {
    2: ("advantages permuted in the group", "advantages"),
    3: ("rate 0", "update"),
    4: ("padding trained on", "loss"),
    5: ("log-probabilities shifted", "gradient's norm"),
    6: ("temperature left out by the trainer", "agreement"),
    7: ("another prompt in the batch", "prompts"),
    8: ("the last sampled token lost", "mask"),
    9: ("half a sync", "sync"),
    11: ("no sync", "sync"),
}


def test_a_changed_trainer_turns_red(rehearse):
    import verl_mutants

    variables = {
        "PYTHONPATH": str(SUPPORT),
        "VERL_USE_EXTERNAL_MODULES": "verl_mutants",
        verl_mutants.VARIABLE: json.dumps({step: name for step, (name, _) in CHANGES.items()}),
    }
    document, records = rehearse(steps=13, variables=variables)
    assert document["exit_code"] == 1
    red = {record.number: {name for name, _ in find_complaints(record, 1e-5)} for record in records}
    assert {step: check for step, (_, check) in CHANGES.items() if check not in red[step]} == {}, red
    assert {step: red[step] for step in (1, 13)} == {1: set(), 13: set()}
    assert {check for _, check in CHANGES.values()} <= {one["check"] for one in document["findings"]}


def test_a_reward_that_raises_and_never_differs(rehearse):
    document, records = rehearse(
        **{
            "data.train_files": "none.parquet",
            "reward.custom_reward_function.name": "nothing",
            "actor_rollout_ref.actor.use_dynamic_bsz": True,
            "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
            "algorithm.norm_adv_by_std_in_grpo": False,
        }
    )
    assert [one["check"] for one in document["findings"]] == ["reward nothing"]
    assert "of row 70, which has nothing in a column" in document["sentence"]
    assert all(record.stubbed for record in records)
    assert read_checks(document) | {"spread of rewards": "stubbed", "advantages": "ok"} == read_checks(document)


REFUSED = {
    "no column": ({"data.train_files": "questions.parquet"}, 2, "questions.parquet has no column 'prompt'"),
    "no file": ({"data.train_files": "gone.parquet"}, 2, "data.train_files: there is no file gone.parquet"),
    "no key": ({f"{ROLLOUT}.no_such": 3}, 1, f"it has no key {ROLLOUT}.no_such"),
    "no number": ({"data.train_batch_size": "sixty"}, 1, "verl refuses it as it is written: "),
    "a critic": ({"algorithm.adv_estimator": "gae"}, 2, "gae isn't rehearsed: it needs a critic"),
}


@pytest.mark.parametrize(("settings", "code", "said"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_is_one_sentence(rehearse, settings, code, said):
    document, records = rehearse(**settings)
    assert (document["exit_code"], records) == (code, [])
    assert said in " ".join([*document["ended"], document["sentence"]])


def test_an_interrupt_leaves_nothing_behind(tmp_path, environ):
    words = [f"{key}={value}".replace("$OWN_MODEL", environ["OWN_MODEL"]) for key, value in SETTINGS.items()]
    (temporary := tmp_path.with_name("t")).mkdir()
    before = set(os.listdir("/dev/shm"))
    running = subprocess.Popen(
        ["rlregress", "rehearse", "--", "python3", "-m", "verl.trainer.main_ppo", *words],
        cwd=tmp_path,
        env={**environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    family = processes.descendants(running.pid)
    while not any(processes.command(one.pid).startswith("ray::") for one in family):
        assert running.poll() is None
        time.sleep(0.5)
        family = processes.descendants(running.pid)
    running.send_signal(signal.SIGINT)
    assert running.wait() == 128 + signal.SIGINT
    assert {one for one in family if processes.living(one.pid) == one} == set()
    assert os.listdir(temporary) == []
    assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith(("psm_", "plasma"))} == set()
