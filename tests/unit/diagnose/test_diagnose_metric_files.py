"""How metrics are read: lines of every trainer, files of metrics, and what `rlregress diagnose` makes of them."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from installed import TESTS

from pytest_rlregress.cli import main
from pytest_rlregress.commands.diagnose.metrics import Run, read_file

RECORDED = TESTS / "metrics"
ZERO_VERL = "".join(
    f"(TaskRunner pid=1) step:{n} - critic/score/mean:0.000 - critic/score/max:0.0\n" for n in range(1, 41)
)


def rows_of(text, name="reward"):
    run = Run("made.log")
    run.feed(text.encode())
    return list(run.get(name).by_step.items())


# Lines as they are printed: by verl 0.9.1, verl 0.2 and transformers 4 and 5, by wandb's older files.
LINES = {
    "verl": ("\x1b[36m(TaskRunner pid=7)\x1b[0m step:3 - critic/score/mean:0.25 - timing_s/gen:1.5", [(3, 0.25)]),
    "verl, numpy 2": ("step:3 - actor/loss:1 - critic/score/mean:np.float64(-2.5e-05) - x/y:1", [(3, -2.5e-05)]),
    "verl, behind a bar": ("Training:  10%|█         | 1/10 [00:01<00:09] step:3 - critic/score/mean:1", [(3, 1.0)]),
    "verl, three decimals": ("step:3 - critic/lr(1e-4):0.1 - critic/score/mean:0.250 - actor/lr:0.000", [(3, 0.25)]),
    "verl, the reward if no score": ("step:3 - critic/rewards/mean:0.5", [(3, 0.5)]),
    "verl, validation only": ("step:0 - val-core/gsm8k/reward/mean@1:0.5", []),
    "verl's file": ('{"step":3,"data":{"critic/score/mean":0.25,"actor/lr":1e-6}}', [(3, 0.25)]),
    "TRL": ("{'loss': 0.0, 'grad_norm': 0.1, 'reward': -0.25, 'epoch': 0.01}", [(1, -0.25)]),
    "TRL, transformers 5": ("{'loss': '0', 'grad_norm': '0.1', 'reward': '2.5e-05', 'epoch': '0.01'}", [(1, 2.5e-05)]),
    "TRL, behind a bar": (" 10%|█ | 1/10 [00:01<00:09,  1s/it]{'reward': 1.0, 'epoch': 0.01}\r", [(1, 1.0)]),
    "TRL, evaluation": ("{'eval_loss': 0.5, 'eval_reward': 0.25, 'epoch': 0.01}", []),
    "TRL, the last line": ("{'train_runtime': 5.4, 'train_loss': -0.03, 'epoch': 0.15}", []),
    "settings": ("{'reward': 1.0, 'clip_ratio': 0.2}", []),
    "JSON lines": ('2026-01-01 {"loss": 0.1, "reward": 0.25, "step": 3, "epoch": 0.1}', [(3, 0.25)]),
    "wandb": ('{"_step": 9, "_runtime": 5.1, "train/global_step": 3, "train/reward": 0.25}', [(3, 0.25)]),
    "wandb, evaluation": ('{"_step": 9, "train/global_step": 3, "eval/reward": 0.25}', []),
    "JSON, cut off": ('{"step": 3, "reward": 0.25, "gr', []),
    "a step that none is": ('{"step": 99999999999999999999, "reward": 0.25}', [(1, 0.25)]),
    "verl, a step that none is": (f"step:{'9' * 20} - critic/score/mean:0.25", []),
    "a number of 400 digits": (f'{{"step": 3, "reward": {"9" * 400}}}', [(3, math.inf)]),
    "JSON of something else": ('{"step": 3, "reward": {"mean": 1}, "message": "reward"}', []),
}


@pytest.mark.parametrize("name", LINES)
def test_reads_metrics_from_each_line_format(name):
    line, rows = LINES[name]
    assert rows_of(f"INFO: before\n{line}\nafter\n") == rows


@pytest.mark.parametrize(
    "line",
    [
        "step:3 - actor/grad_norm:nan",
        "step:3 - actor/grad_norm:np.float64(nan) - x:1",
        '{"step":3,"data":{"actor/grad_norm":null}}',
        '{"step": 3, "grad_norm": NaN}',
        '{"_step": 3, "train/grad_norm": "NaN"}',
        "{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.01}",
        "{'loss': '0', 'grad_norm': 'nan', 'epoch': '0.01'}",
    ],
)
def test_reads_missing_numbers_of_every_writer(line):
    [(_, value)] = rows_of(line, "gradient norm")
    assert math.isnan(value)


def test_rows_of_a_step_belong_together():
    text = '{"_step": 1, "reward": 0.5}\n{"_step": 1, "grad_norm": 0.1, "reward": 0.7}\n{"_step": 2, "reward": 0.6}\n'
    assert rows_of(text) == [(1, 0.5), (2, 0.6)]
    assert rows_of(text, "gradient norm") == [(1, 0.1)]


def test_two_writers_in_one_log_do_not_mix():
    """TRL's own print beside the JSON lines of a callback: the same steps, once with numbers."""
    text = "".join(
        f"{{\"step\": {n}, \"reward\": {n}.5}}\n{{'loss': 0.1, 'reward': {n}.5, 'epoch': 0.1}}\n" for n in (10, 20)
    )
    assert rows_of(text) == [(10, 10.5), (20, 20.5)]


def test_reads_the_settings_that_verl_prints():
    run = Run("made.log")
    run.feed((b"(TaskRunner pid=1)     'ppo_epochs': 1,\n 'ppo_mini_batch_size': 8,\n" * 2) + b"'train_batch_size': 8}")
    assert run.settings == {"ppo_epochs": {1}, "ppo_mini_batch_size": {8}, "train_batch_size": {8}}


@pytest.fixture
def diagnose(capsys):
    def run(*arguments):
        code = main(["diagnose", *map(str, arguments)])
        return code, capsys.readouterr()

    return run


def test_shows_evidence_from_metrics_beside_the_log(tmp_path, diagnose):
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(f"{ZERO_VERL}KeyError: 'ministral3'\n".replace("\n", "\r\n").encode()))
    code, printed = diagnose(path)
    assert code == 1
    assert printed.out.startswith("unrecognised-model-type: ")
    in_metrics = printed.out.partition("\nIn the metrics:")[2]
    assert in_metrics.lstrip().startswith(str(path))
    assert "(40 steps, 1 to 40)" in " ".join(in_metrics.split())
    assert "Could be math-verify-zero-reward: Right answers score 0 because the judge broke\n" in in_metrics
    assert "critic/score/mean is 0 at all 40 steps (1 to 40)" in " ".join(in_metrics.split())
    assert "  values: 0 at 1, 0 at 2, 0 at 3, 0 at 38, 0 at 39, 0 at 40\n" in in_metrics
    assert in_metrics.endswith("1 documented failure, 3 that could be one\n")


def test_could_be_has_the_exit_code_of_could_be(tmp_path, diagnose):
    path = tmp_path / "run.log"
    path.write_text(ZERO_VERL)
    code, printed = diagnose("--json", path)
    assert code == 3
    read = json.loads(printed.out)
    assert read["metrics_read"] == [{"log": str(path), "steps": 40, "first": 1, "last": 40}]
    [found] = read["metrics"]
    assert found["ids"][0] == "math-verify-zero-reward"
    assert (found["confidence"], found["metric"]) == ("possible", "critic/score/mean")
    assert found["steps"] == [*range(1, 11), *range(31, 41)]
    assert found["values"] == [0.0] * 20


def test_two_signs_together_are_an_answer(diagnose):
    code, printed = diagnose(RECORDED / "trl-nan-gradient.json")
    assert code == 1
    assert "\nnan-step-exclamation-marks: One NaN gradient" in printed.out
    assert "\n  remedy: " in printed.out
    assert printed.out.endswith("\n\n1 documented failure\n")
    _, printed = diagnose("--json", RECORDED / "trl-nan-gradient.json")
    [found] = json.loads(printed.out, parse_constant=pytest.fail)["metrics"]
    assert (found["confidence"], found["values"]) == ("certain", [None] * 5)


def test_sound_run_lists_the_files_that_were_read(diagnose):
    code, printed = diagnose(RECORDED / "verl-sound.jsonl")
    assert code == 0
    assert " ".join(printed.out.split()).startswith("In the metrics: no sign of a documented failure; read were /")
    assert "(6 steps, 1 to 6)" in " ".join(printed.out.split())
    assert printed.out.endswith("\n\nno documented failures\n")


def test_reads_a_folder_of_runs(tmp_path, diagnose):
    for step in (10, 9):
        (tmp_path / "a" / f"checkpoint-{step}").mkdir(parents=True)
        state = {"log_history": [{"step": n, "reward": 0.0} for n in range(1, step + 1)]}
        (tmp_path / "a" / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state, indent=2))
    (tmp_path / "wandb-history.jsonl").write_text('{"_step": 4, "reward": 0.5}')
    (tmp_path / "train.log").write_text("KeyError: 'ministral3'\n")
    code, printed = diagnose("--json", tmp_path)
    assert code == 3
    read = json.loads(printed.out)
    assert read["documented"] == []  # only files of metrics are looked for in a folder
    assert [(Path(one["log"]).parent.name, one["steps"]) for one in read["metrics_read"]] == [
        ("checkpoint-10", 10),
        (tmp_path.name, 1),
    ]
    assert [one["sign"] for one in read["metrics"]] == ["reward of 0"]


@pytest.mark.parametrize("content", ['{"log_history": [{"step": 1,', '{"log_history": 3}'])
def test_names_an_unreadable_trainer_state(tmp_path, diagnose, content):
    path = tmp_path / "trainer_state.json"
    path.write_text(content)
    code, printed = diagnose(path, RECORDED / "verl-sound.jsonl")
    assert code == 2
    assert f"{path}: no trainer state of transformers" in printed.err
    assert "no sign of a documented failure" in " ".join(printed.out.split())  # the others are read all the same


def test_events_without_tensorboard_say_what_to_install(monkeypatch, diagnose):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    code, printed = diagnose(RECORDED / "trl-sound.tfevents")
    assert code == 2
    assert (
        "trl-sound.tfevents: events of TensorBoard, whose reader is not installed: pip install tensorboard"
        in printed.err
    )


def test_cut_off_events_are_read_to_their_end(tmp_path):
    pytest.importorskip("tensorboard")
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes((RECORDED / "trl-sound.tfevents").read_bytes()[:15_000])
    [run] = read_file(path)
    assert 1 < len(run.steps) < 10


@pytest.mark.process
def test_other_files_import_no_reader_of_events():
    script = (
        "import sys; from pytest_rlregress.cli import main; main(sys.argv[1:]); "
        "print(sorted({'numpy', 'tensorboard', 'torch'} & sys.modules.keys()))"
    )
    names = ["verl-sound.jsonl", "trl-sound.log", "trl-sound.json"]
    command = [sys.executable, "-c", script, "diagnose", *(str(RECORDED / name) for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
