"""``rlregress preflight``: Python scripts that call a trainer of TRL's, read without running them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from pytest_rlregress.cli import main
from pytest_rlregress.preflight.document import read
from pytest_rlregress.preflight.formats import UNKNOWN, ConfigError

needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")
SCRIPT = """\
import os, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
MODEL = "Qwen/Qwen2.5-7B-Instruct"
{before}
args = GRPOConfig("out", use_vllm=True, vllm_mode="colocate", max_completion_length=512, {arguments})
trainer = GRPOTrainer(model={model}, args=args, reward_funcs=print, {trainer})
trainer.train()
raise SystemExit("preflight ran it")
"""


@pytest.fixture
def config(tmp_path):
    """Read a script with these arguments."""

    def config(before="", arguments="", model="MODEL", trainer="", text=SCRIPT):
        file = tmp_path / "train.py"
        text = text.format(before=before, arguments=arguments, model=model, trainer=trainer) if text == SCRIPT else text
        file.write_text(text, encoding="utf-8")
        return read([str(file)], {})

    return config


def test_arguments_of_the_configuration(config):
    found = config("share = 0.4\nsettings = dict(beta=0.1)", "vllm_gpu_memory_utilization=share, **settings")
    assert found.program == "trl grpo"
    expected = {"output_dir": "out", "use_vllm": True, "vllm_gpu_memory_utilization": 0.4, "beta": 0.1}
    assert expected.items() <= found.tree.items()
    assert found.place("beta").line == 8
    assert found.place("use_vllm").line == 9
    assert found.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("share = 0.4\nshare = 0.5", "share"),
        ("for share in (0.4, 0.5): pass", "share"),
        ("def share(share): return share", "share(0.4)"),
        ("share = 0.4\nshare += 0.1", "share"),
        ("import sys", "float(sys.argv[1])"),
        ("", "named_nowhere"),
    ],
)
def test_other_values_are_not_known(config, before, value):
    found = config(before, f"vllm_gpu_memory_utilization={value}")
    assert found.hides("vllm_gpu_memory_utilization")
    assert found.get("vllm_gpu_memory_utilization", 0.9) is None


def test_two_calls_that_differ(config):
    found = config("other = GRPOConfig(learning_rate=1e-6, seed=1)", "learning_rate=1e-5, seed=1")
    assert found.hides("learning_rate")
    assert found.get("seed") == 1


LOADED = 'model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="sdpa")'


@pytest.mark.parametrize(
    ("before", "arguments", "model", "expected"),
    [
        ("", "", "MODEL", {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct"}),
        ("", 'model_init_kwargs={"dtype": torch.bfloat16}', "MODEL", {"dtype": "bfloat16"}),
        (LOADED, "", "model", {"dtype": "float32", "attn_implementation": "sdpa"}),
        ("", "", "AutoModelForCausalLM.from_pretrained(MODEL)", {"dtype": "auto"}),
        ("", "", "AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype='float16')", {"dtype": "float16"}),
        ("", "", "load()", {"model_name_or_path": UNKNOWN}),
    ],
)
def test_model(config, before, arguments, model, expected):
    assert expected.items() <= config(before, arguments, model).tree.items()


@pytest.mark.parametrize(
    ("before", "model", "trainer", "lora", "rank"),
    [
        ("", "MODEL", "", False, None),
        ("", "MODEL", "peft_config=None", False, None),
        ("", "MODEL", "peft_config=LoraConfig(r=4)", True, 4),
        ("lora = LoraConfig()", "MODEL", "peft_config=lora", True, 8),
        ("import sys\nlora = LoraConfig(r=4) if sys.argv[1:] else None", "MODEL", "peft_config=lora", UNKNOWN, None),
        ("lora = None\nlora = LoraConfig(r=4)", "MODEL", "peft_config=lora", UNKNOWN, None),
        (f"{LOADED}", "get_peft_model(model, LoraConfig(r=2))", "", True, 2),
        (f"{LOADED}\nmodel = get_peft_model(model, LoraConfig(r=2))", "model", "", UNKNOWN, None),
        ("", "load()", "", UNKNOWN, None),
    ],
)
def test_lora(config, before, model, trainer, lora, rank):
    tree = config(before, model=model, trainer=trainer).tree
    assert (tree["use_peft"], tree.get("lora_r")) == (lora, rank)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print(1)", "no call of a configuration of TRL's such as GRPOConfig"),
        ("parser = TrlParser((GRPOConfig,))", "checked with its command"),
        ("SFTConfig()\nDPOConfig()", "configurations of dpo and sft"),
        ("def f(:", "no Python: line 1"),
    ],
)
def test_script_without_one_configuration(config, text, said):
    with pytest.raises(ConfigError, match=said):
        config(text=text)


@needs_trl
def test_findings_are_told_as_the_script_writes_them(tmp_path, capsys):
    file = tmp_path / "train.py"
    arguments = (
        'vllm_gpu_mem_utilization=0.3, loss_type="drgrpo", use_liger_kernal=True, vllm_gpu_memory_utilization=0.9'
    )
    arguments += ", per_device_train_batch_size=4"
    file.write_text(SCRIPT.format(before="", arguments=arguments, model="MODEL", trainer=""), encoding="utf-8")
    assert main(["preflight", str(file), "accelerate.num_processes=1", "--hw=h100"]) == 1
    printed = capsys.readouterr().out
    for text in ("vllm_gpu_memory_utilization=0.3", "loss_type='dr_grpo'", "use_liger_kernel=True"):
        assert f"    {text}\n" in printed
    assert "peft_config=LoraConfig()" in printed


@needs_trl
def test_unknown_adapter_is_asked_for(tmp_path, capsys):
    file = tmp_path / "train.py"
    text = SCRIPT.format(before="", arguments="per_device_train_batch_size=8", model="load()", trainer="")
    file.write_text(text, encoding="utf-8")
    arguments = ["accelerate.num_processes=1", "--parameters=7B", "--hw=h100", "--prompt-tokens=64"]
    assert main(["preflight", str(file), *arguments]) == 3
    assert "whether trl grpo trains LoRA is not known here: give use_peft" in capsys.readouterr().out
