"""``rlregress preflight``: scripts that make a trainer of TRL's, run up to where they do."""

from __future__ import annotations

import json
import sys

import pytest

from pytest_rlregress.cli import main
from pytest_rlregress.commands.preflight.command import read

pytestmark = [pytest.mark.isolated(group="preflight-trl"), pytest.mark.needs("trl")]
SCRIPT = """\
import os, torch, torch.distributed, wandb
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
os.environ["SAW"] = f"{torch.cuda.is_available()} {torch.distributed.is_initialized()}"
wandb.init(project="mine")
torch.distributed.init_process_group("gloo", init_method="file:///tmp/never", rank=0, world_size=1)
os.environ["SAW"] += f" {torch.distributed.is_initialized()}"
tokenizer = AutoTokenizer.from_pretrained("me/nowhere-7B")
data = load_dataset("me/nowhere", split="train").map(lambda row: tokenizer(row["prompt"]))
model = AutoModelForCausalLM.from_pretrained("me/nowhere-7B", dtype=torch.float32)
share = 0.5 + 0.4
args = GRPOConfig(
    "out", use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=share, bf16=True, max_completion_length=512,
    per_device_train_batch_size=4, num_generations=4, loss_type="drgrpo", use_liger_kernal=True,
)
trainer = GRPOTrainer(model=get_peft_model(model, LoraConfig(r=4)), args=args, reward_funcs=print, train_dataset=data)
trainer.train()
open("it_ran", "w")
"""


def test_script_stops_where_it_makes_its_trainer(tmp_path, monkeypatch, capsys):
    """No model, no data, no process group, no GPU, no run of W&B, no file; values come out as Python computed them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    config = read([], {"PATH": "", "HOME": str(tmp_path)}, [sys.executable, "train.py"])
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert config.environ["SAW"] == "False False False"
    expected = {"output_dir": "out", "vllm_gpu_memory_utilization": 0.9, "model_name_or_path": "me/nowhere-7B"}
    expected |= {"dtype": "float32", "use_peft": True, "lora_r": 4, "max_completion_length": 512, "bf16": True}
    assert expected.items() <= config.tree.items()
    assert (config.program, config.get("accelerate.num_processes")) == ("trl grpo", 1)
    assert str(config.place("vllm_gpu_memory_utilization")) == "train.py:15"
    assert config.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert main(["preflight", "--json", "--hw=h100", "--", sys.executable, "train.py"]) == 1
    found = {one["key"]: (one["file"], one["instead"]) for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["use_liger_kernal"] == ("train.py", "use_liger_kernel=True")
    assert found["loss_type"] == ("train.py", "loss_type='dr_grpo'")
    assert found["vllm_gpu_memory_utilization"] == ("train.py", "vllm_gpu_memory_utilization=0.5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "more", "expected"),
    [
        ('"me/7B"', "", {"model_name_or_path": "me/7B", "use_peft": False}),
        ('"me/7B"', "peft_config=LoraConfig(r=2)", {"use_peft": True, "lora_r": 2}),
        ("load()", "", {"model_name_or_path": "???"}),
    ],
)
def test_reads_the_model_of_a_script(tmp_path, monkeypatch, model, more, expected):
    monkeypatch.chdir(tmp_path)
    text = f"from peft import LoraConfig\nfrom trl import SFTConfig, SFTTrainer\nload = object\nSFTTrainer({model}, "
    (tmp_path / "train.py").write_text(f"{text}SFTConfig(packing=True), {more})\n", encoding="utf-8")
    config = read([], {}, [sys.executable, "train.py"])
    assert ({"packing": True, **expected}.items() <= config.tree.items(), config.program) == (True, "trl sft")


def test_rejects_a_script_given_as_a_file(tmp_path, capsys):
    (tmp_path / "train.py").touch()
    assert main(["preflight", str(tmp_path / "train.py")]) == 2
    assert "-- python" in capsys.readouterr().err
