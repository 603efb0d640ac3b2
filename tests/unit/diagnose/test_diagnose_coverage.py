"""What ``rlregress diagnose`` may call free of documented failures: only what it has read."""

from __future__ import annotations

import json

import pytest

from pytest_rlregress.cli import main
from pytest_rlregress.commands.diagnose import signs
from pytest_rlregress.commands.diagnose.metrics import Run


@pytest.fixture
def diagnose(tmp_path, capsys):
    """``diagnose(content, name)``: the exit code, and what is printed on either stream, of a file with a content."""

    def diagnose(content, name="run.log", *options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        code = main(["diagnose", str(path), *options])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return diagnose


@pytest.mark.parametrize("name", ["absent.log", "folder"])
def test_nothing_is_said_of_what_was_not_read(tmp_path, capsys, name):
    (tmp_path / "folder").mkdir()
    assert main(["diagnose", str(tmp_path / name)]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"\n\n", bytes(range(256)) * 20])
def test_nothing_is_said_of_an_empty_or_binary_log(diagnose, content):
    code, out, err = diagnose(content)
    assert (code, out) == (2, "")
    assert "run.log: " in err


@pytest.mark.parametrize(
    ("header", "runs"),
    [
        ("step,reward,lr", [""]),
        ('"Step","one - reward","one - reward__MIN","one - reward__MAX"', [", one"]),
        ('"Step","one - train/reward","two - train/reward"', [", one", ", two"]),
        ("train/global_step,train/reward", [""]),
    ],
)
def test_reads_the_table_that_wandb_exports(diagnose, header, runs):
    columns = header.count(",")
    table = "\n".join([header, *(f"{step}{',0.0' * columns}" for step in range(1, 13))])
    code, out, _ = diagnose(table, "wandb_export.csv", "--json")
    assert code == 3
    read = json.loads(out)
    assert [one["log"].rpartition(".csv")[2] for one in read["metrics_read"]] == runs
    assert "reward of 0" in [one["sign"] for one in read["metrics"]]


def test_reads_the_table_in_a_folder(tmp_path, capsys):
    (tmp_path / "export.csv").write_text("step,reward\n" + "\n".join(f"{step},0" for step in range(1, 13)))
    assert main(["diagnose", str(tmp_path)]) == 3
    assert "reward is 0 at all 12 steps" in " ".join(capsys.readouterr().out.split())


def test_a_table_of_other_names_is_not_judged(diagnose):
    code, out, _ = diagnose("step,policy_reward,act_kl\n1,0.5,0.1\n", "other.csv")
    assert code == 3
    assert "none of their names is known: policy_reward, act_kl" in " ".join(out.split())
    assert "no documented failures" not in out


def test_metrics_of_another_trainer_are_checked_in_part(diagnose):
    code, out, _ = diagnose("{'loss': 0.1, 'act_reward': 1.0, 'epoch': 0.1}\n")
    assert code == 3
    assert out.endswith("no documented failures, checked in part\n")
    assert "act_reward" in out


def test_an_undocumented_crash_is_not_green(diagnose):
    text = 'Traceback (most recent call last):\n  File "/a/trl/trainer/grpo_trainer.py", line 2, in step\n'
    assert diagnose(f"{text}RuntimeError: of a new kind\n")[0] == 3


def test_reads_a_log_with_a_containers_frames(diagnose):
    lines = [b"step 1\n", b"KeyError: 'ministral3'\n", b"step 2" * 30 + b"\n"]
    framed = b"".join(b"\x02\x00\x00\x00" + len(line).to_bytes(4, "big") + line for line in lines)
    code, out, _ = diagnose(framed)
    assert code == 1
    assert "unrecognised-model-type" in out


def make_run(**series):
    run = Run("run.log")
    for step in range(1, 7):
        run.add(step, {name: values[step - 1] for name, values in series.items()})
    return run


RATIO, GAP = "sampling/importance_sampling_ratio/mean", "sampling/sampling_logp_difference/mean"


@pytest.mark.parametrize(
    ("ratio", "gap", "expected"),
    [
        (0.5, 0.002, ["importance ratio far from 1"]),
        (0.99, 0.002, []),
        (0.5, 0.3, ["gap from the first step"]),  # which explains the ratio
    ],
)
def test_importance_ratio_is_a_sign_where_tokens_agree(ratio, gap, expected):
    assert [one.sign for one in signs.find([make_run(**{RATIO: [ratio] * 6, GAP: [gap] * 6})])] == expected


@pytest.mark.parametrize(("first", "expected"), [(0.0, []), (0.0004, []), (0.3, ["divergence before any update"])])
def test_divergence_from_the_reference_begins_at_0(first, expected):
    assert [one.sign for one in signs.find([make_run(kl=[first, 0.1, 0.2, 0.2, 0.3, 0.3])])] == expected
