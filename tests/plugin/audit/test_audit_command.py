"""The command ``rlregress audit``: what it prints, how it ends, what it says of input that it cannot read."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys

import audited
import pytest
from patience import PATIENCE

torch = pytest.importorskip("torch")

from pytest_rlregress.audit import model_gap  # noqa: E402
from pytest_rlregress.audit.whole import CHECKS  # noqa: E402
from pytest_rlregress.cli import main  # noqa: E402
from pytest_rlregress.commands.audit import audit_command  # noqa: E402
from pytest_rlregress.fixtures import tiny_qwen  # noqa: E402


@pytest.fixture
def audit(tmp_path, capsys, monkeypatch):
    """``audit(batch, *options)``: the exit code, and what is printed on either stream."""
    monkeypatch.chdir(tmp_path)

    def audit(batch, *options):
        path = batch
        if isinstance(batch, dict):
            path = "batch.pt"
            torch.save(batch, path)
        code = main(["audit", str(path), *map(str, options)])
        return code, *capsys.readouterr()

    return audit


@pytest.fixture
def good():
    batch, group = audited.made()
    return batch | {"uid": group}


def test_good_batch_has_no_finding(audit, good):
    code, out, err = audit(good, "--eos", audited.END)
    assert (code, err) == (0, "")
    trained = int(good["response_mask"].sum())
    assert out.startswith(f"batch.pt (torch.save), 8 rows, {trained} trained tokens: nothing found\n")
    assert "old_log_probs and rollout_log_probs are 0.0" in out
    assert "not checked" not in out
    assert f"checked: {', '.join(CHECKS)}" in " ".join(out.split())


def test_prints_each_finding_with_its_place(audit, good):
    good["token_level_scores"][2] = good["token_level_scores"][2].roll(1)
    good["rollout_log_probs"][:, 4] = float("nan")
    code, out, err = audit(good)
    assert (code, err) == (1, "")
    token, _ = audited.last(good, 2)
    assert "reward: token_level_scores, 1 token in 1 row" in out
    assert f"    row 2, token {token + 1}: 0.375\n  instead: put the reward on" in out
    assert "not-a-number: rollout_log_probs, 8 tokens in every row" in out
    assert "    row 4, token 4: nan\n    and 3 more\n" in out
    assert "rows, " in out
    assert ": 2 findings, checked in part\n" in out
    assert "not checked: end: no end token is known: --eos ID" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_prints_findings_as_json(audit, good):
    good["response_mask"][3] = 0
    good["token_level_scores"][3] = 0
    code, out, _ = audit(good, "--json")
    found = json.loads(out)
    assert code == 1
    (finding,) = found["findings"]
    assert finding["check"] == "mask"
    assert finding["column"] == "response_mask"
    assert finding["rows"] == 1
    assert finding["places"] == [{"row": 3, "token": None, "text": ""}]
    assert finding["instead"]
    assert (found["form"], found["rows"]) == ("torch.save", 8)
    assert found["trained_tokens"] == int(good["response_mask"].sum())
    assert found["not_checked"] == [{"check": "end", "why": "no end token is known: --eos ID"}]
    assert (found["result"], found["missing"]) == ("findings", ["--eos ID"])
    assert "group-spread" in found["checked"]
    code, out, _ = audit(good, "--json", "--skip", "mask", "--eos", audited.END)
    assert (code, json.loads(out)["findings"]) == (0, [])


def test_reading_in_pieces_finds_the_same(audit, good, monkeypatch):
    """Rows and groups in different pieces: the same is found as in one."""
    good["rollout_log_probs"][5, 3] = float("nan")
    good["token_level_scores"][4:] = (good["token_level_scores"][4:] > 0).float()
    whole = audit(good, "--json")
    for size in (1, 3000):
        monkeypatch.setattr("pytest_rlregress.audit.files.PIECE_BYTES", size)
        assert audit(good, "--json") == whole
    assert [one["check"] for one in json.loads(whole[1])["findings"]] == ["not-a-number", "group-spread"]


def test_parquet_of_texts_as_trl_logs_completions(audit, tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    prompts = [[{"role": "user", "content": f"What is {row // 4} + 1?"}] for row in range(8)]
    advantages = [0.0] * 4 + [1.0, -1.0, 0.5, -0.5]
    table = {"step": [1] * 8, "prompt": prompts, "completion": ["1"] * 8, "advantage": advantages}
    parquet.write_table(pa.table(table), tmp_path / "completions_00001.parquet")
    code, out, _ = audit(tmp_path / "completions_00001.parquet")
    assert code == 1
    assert "group-spread: advantage, 1 row" in out
    assert "row 0: all of the group of rows 0-3 have" in out
    assert "a log of texts has no tokens" in " ".join(out.split())


def test_texts_and_scores_as_verl_logs_them(audit, tmp_path):
    rows = [{"input": f"{row // 4}", "output": "1", "score": float(row == 5), "step": 1} for row in range(8)]
    (tmp_path / "1.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, out, _ = audit(tmp_path / "1.jsonl")
    assert code == 1
    assert "group-spread: score, 1 row" in out
    assert "row 0: all of the group of rows 0-3 have 0" in out


def test_maps_custom_column_names(audit, good):
    good["mine"] = good.pop("response_mask")
    code, _, err = audit(good)
    assert code == 2
    words = " ".join(err.split())
    assert "batch.pt: it has no response_mask (what is trained on), without which" in words
    assert "Looked for response_mask: response_mask, action_mask, loss_mask" in words
    assert "The batch has advantages, attention_mask, input_ids, mine, old_log_probs" in words
    assert "--map response_mask=COLUMN" in words
    assert audit(good, "--map", "response_mask=mine", "--eos", audited.END)[0] == 0


@pytest.mark.parametrize(
    "options", [["--map", "response_mask"], ["--eos", "end"], ["--skip", "rewards"], ["--model-rows", "0"]]
)
def test_rejects_wrong_options(audit, good, options, capsys):
    with pytest.raises(SystemExit) as end:
        audit(good, *options)
    assert end.value.code == 2
    assert options[1] in capsys.readouterr().err


def test_rejects_a_batch_without_known_columns(audit):
    code, _, err = audit({"pixels": torch.ones(2, 3)})
    assert code == 2
    assert "no column that is known here. It has pixels; --map NAME=COLUMN" in " ".join(err.split())


def test_rejects_a_file_that_is_not_a_batch_in_one_paragraph(audit, tmp_path):
    (tmp_path / "steps.csv").write_text("step,reward\n")
    code, out, err = audit("steps.csv")
    assert (code, out) == (2, "")
    assert err.startswith("rlregress audit: steps.csv: it is none of the formats that are known. A batch is ")
    assert all(len(line) <= 100 or " " not in line for line in err.splitlines())


def test_without_torch_it_says_what_is_missing(good, tmp_path):
    torch.save(good, tmp_path / "batch.pt")
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    command = [sys.executable, "-m", "pytest_rlregress.cli", "audit", "batch.pt"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "its tensors cannot be read: torch isn't installed here" in " ".join(done.stderr.split())


def test_needs_only_torch(good, tmp_path):
    """Neither numpy nor verl nor tensordict are imported, nor is anything of pickle's that runs code."""
    torch.save(good, tmp_path / "batch.pt")
    for name in ("verl", "tensordict", "transformers", "safetensors", "pyarrow"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    script = (
        "import pickle, sys, torch; pickle.Unpickler = pickle.loads = pickle.load = None\n"
        "from pytest_rlregress.cli import main; sys.exit(main(['audit', 'batch.pt', '--eos=2']))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_the_command(good, tmp_path):
    torch.save({name: value for name, value in good.items() if name != "uid"}, tmp_path / "batch.pt")
    script = (
        "import os, signal, sys; from pytest_rlregress.audit import files; files.PIECE_BYTES = 1\n"
        "pieces = files.BatchFile.pieces\n"
        "def slow(self, columns):\n"
        "    for piece in pieces(self, columns):\n"
        "        yield piece\n"
        "        print('begun', flush=True)\n"
        "        signal.pause()\n"
        "files.BatchFile.pieces = slow\n"
        "from pytest_rlregress.cli import main; sys.exit(main(['audit', 'batch.pt']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, "", "rlregress audit: interrupted\n")


def test_help_names_every_check(capsys):
    with pytest.raises(SystemExit):
        main(["audit", "--help"])
    out = capsys.readouterr().out
    for check in CHECKS | audit_command.MODEL_CHECK:
        assert f"\n  {check} " in out
    assert 'batch.save_to_disk("batch.pkl")' in out


@pytest.fixture(scope="module")
def sharp():
    return tiny_qwen.build("sharp")


@pytest.fixture
def sampled(sharp):
    """A batch whose log-probabilities are the model's."""
    batch, group = audited.made(rows=4, group=2)
    for name in ("old_log_probs", "rollout_log_probs"):
        write_log_probs(batch, name, sharp)
    return batch | {"uid": group}


def write_log_probs(batch, name, sharp, temperature=1.0):
    """Put the model's log-probabilities into a column."""
    from pytest_rlregress.agreement.logprobs import token_logprobs

    model, kept = sharp.model("float32").eval(), batch["attention_mask"].bool()
    for row in range(4):
        count = int(batch["response_mask"][row].sum())
        (numbers,) = token_logprobs(model, [batch["input_ids"][row][kept[row]].tolist()], temperature)
        batch[name][row, :count] = torch.tensor(numbers[-count:])


@pytest.mark.slow
def test_batch_sampled_from_the_model_is_clean(audit, sharp, sampled):
    code, out, _ = audit(sampled, "--model", sharp.directory, "--json", "--eos", audited.END)
    found = json.loads(out)
    assert (code, found["findings"]) == (0, [])
    assert found["checked"][-1] == "gap"
    assert "old_log_probs and the model, 4 rows: agrees" in found["notes"][-2]


@pytest.mark.slow
def test_finds_log_probabilities_of_another_temperature(audit, sharp, sampled):
    """The gap, where it is, and what explains it."""
    batch = sampled
    write_log_probs(batch, "rollout_log_probs", sharp, 0.5)
    code, out, _ = audit(
        batch, "--model", sharp.directory, "--temperature", 0.5, "--model-rows", 2, "--json", "--eos", audited.END
    )
    (finding,) = [one for one in json.loads(out)["findings"] if one["check"] == "gap"]
    assert any("the model, 2 rows" in note for note in json.loads(out)["notes"])
    assert code == 1
    assert finding["column"] == "old_log_probs"
    assert "temperature" in finding["what"]
    place = finding["places"][0]
    worst = (batch["old_log_probs"] - batch["rollout_log_probs"]).abs()[place["row"]].argmax()
    assert place["token"] == int(worst)
    assert "nats a token in the row" in place["text"]


@pytest.mark.slow
def test_model_finds_a_single_shifted_column(audit, sharp, sampled):
    del sampled["old_log_probs"]
    sampled["rollout_log_probs"][:, 1:] = sampled["rollout_log_probs"][:, :-1].clone()
    code, out, _ = audit(sampled, "--model", sharp.directory, "--json", "--eos", audited.END)
    assert code == 1
    (finding,) = json.loads(out)["findings"]
    assert finding["check"] == "gap"
    assert "one token" in finding["what"], finding["what"]


def test_reads_the_end_tokens_of_the_model(sharp, tmp_path):
    assert model_gap.end_tokens(sharp.directory)
    assert model_gap.end_tokens(tmp_path) == []
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert model_gap.end_tokens(tmp_path) == [7]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert model_gap.end_tokens(tmp_path) == [1, 2]
    (tmp_path / "generation_config.json").write_text("{")
    assert model_gap.end_tokens(tmp_path) == [7]


def test_rejects_a_model_of_another_vocabulary(audit, sharp, sampled):
    sampled["input_ids"][1, -1] = sampled["responses"][1, -1] = 151_643
    code, out, err = audit(sampled, "--model", sharp.directory)
    assert (code, out) == (2, "")
    words = " ".join(err.split())
    assert "its vocabulary has " in words
    assert "input_ids has the id 151643 in row 1: it is not the model that sampled this batch" in words


def test_rejects_a_directory_without_a_model(audit, sampled, tmp_path):
    code, _, err = audit(sampled, "--model", tmp_path)
    assert code == 2
    assert "that isn't a model directory: it has no config.json" in " ".join(err.split())
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    code, _, err = audit(sampled, "--model", tmp_path)
    assert code == 2
    assert "transformers cannot load it" in " ".join(err.split())


def test_model_folder_runs_no_code_of_its_own(audit, sampled, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(
        '{"model_type": "odd", "architectures": ["Odd"], "vocab_size": 100, "auto_map": '
        '{"AutoConfig": "configuration_odd.OddConfig", "AutoModelForCausalLM": "configuration_odd.Odd"}}'
    )
    (tmp_path / "configuration_odd.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from transformers import PretrainedConfig\n"
        "class OddConfig(PretrainedConfig): model_type = 'odd'\n"
        "class Odd: pass\n"
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))  # transformers may ask whether to
    code, _, err = audit(sampled, "--model", tmp_path)
    assert code == 2
    assert "transformers cannot load it" in " ".join(err.split())
    assert not (tmp_path / "ran").exists()
