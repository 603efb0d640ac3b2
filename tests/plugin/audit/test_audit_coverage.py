"""What ``rlregress audit`` may call green: only what it has checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import audited
import pytest

from pytest_rlregress.cli import main

LONG = "First I add the two numbers, then I take the half of them, and what remains is the answer: 42."


@pytest.fixture
def audit(tmp_path, capsys, monkeypatch):
    """``audit(rows)``: the exit code, and what is printed, of rows in a file of JSON lines."""
    monkeypatch.chdir(tmp_path)

    def audit(rows, *options):
        (tmp_path / "1.jsonl").write_text("\n".join(map(json.dumps, rows)))
        code = main(["audit", "1.jsonl", *options])
        printed = capsys.readouterr()
        return code, printed.out, " ".join(printed.err.split())

    return audit


def make_rows(**changed):
    """Return a rollout as verl logs it: two prompts, four samples each, in which nothing is wrong."""
    rows = [
        {"input": f"What is {row // 4} + 1?", "output": f"{LONG} {row}", "score": float(row % 2), "step": 1}
        for row in range(8)
    ]
    for name, value in changed.items():
        rows[5][name] = value
    return rows


def test_says_which_checks_a_log_of_texts_does_not_have(audit):
    code, out, _ = audit(make_rows())
    assert code == 0
    assert "8 rows: nothing found in texts and rewards\n" in out
    assert "checked: not-a-number, group-size, group-spread, duplicate" in out
    assert "shifted: a log of texts has no tokens; a batch with tokens" in " ".join(out.split())


def test_rewards_alone_are_checked_in_part(audit):
    code, out, _ = audit([{"uid": row // 4, "score": float(row % 2)} for row in range(8)])
    assert code == 3
    assert "8 rows: nothing found, checked in part" in out
    assert "to check these too, give: a batch with tokens" in " ".join(out.split())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "one"])
def test_finds_a_score_that_is_no_number(audit, value):
    code, out, _ = audit(make_rows(score=value))
    assert code == 1
    assert "not-a-number: score, 1 row" in out
    assert f"row 5: {value!r}" in out


def test_finds_equal_texts(audit):
    code, out, _ = audit(make_rows(output=f"{LONG} 4"))
    assert code == 1
    assert "duplicate: output, 1 row" in out
    assert "row 5: the same " in out
    short = [row | {"output": "42"} for row in make_rows()]
    assert audit(short)[0] == 0


@pytest.mark.parametrize(
    "row",
    [
        {"data_source": "gsm8k", "prompt": [{"role": "user", "content": "2 + 2?"}], "reward_model": {"style": "rule"}},
        {"prompt": "2 + 2?", "completion": "4"},
        {"uid": "1", "step": 1},
    ],
)
def test_rejects_a_data_set(audit, row):
    code, out, err = audit([row] * 4)
    assert (code, out) == (2, "")
    assert "it has no tokens and no rewards: is it a data set?" in err


def test_no_end_token_is_checked_in_part(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    batch, group = audited.made()
    path = tmp_path / "batch.pt"
    torch.save(audited.as_trl(batch) | {"uid": group}, path)
    assert main(["audit", str(path)]) == 3
    out = capsys.readouterr().out
    assert "nothing found, checked in part" in out
    assert "to check these too, give: --eos ID" in out
    assert main(["audit", str(path), "--eos", str(audited.END)]) == 0
    assert "nothing found\n" in capsys.readouterr().out


def test_says_that_short_responses_show_no_shift(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    batch, _ = audited.made(response=6)
    path = tmp_path / "batch.pt"
    torch.save(batch, path)
    main(["audit", str(path), "--eos", str(audited.END)])
    assert "not checked: shifted: no row has 8 trained tokens" in " ".join(capsys.readouterr().out.split())


def test_texts_need_no_torch(tmp_path):
    (tmp_path / "1.jsonl").write_text("\n".join(map(json.dumps, make_rows())))
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    def audit(name):
        command = [sys.executable, "-m", "pytest_rlregress.cli", "audit", name]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    done = audit("1.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No such file" in audit("2.jsonl").stderr
