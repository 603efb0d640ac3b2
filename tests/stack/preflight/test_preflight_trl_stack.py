"""``rlregress preflight``: TRL's YAML, accelerate's beside it, and commands, as the installed TRL reads them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import LORA, command_of
from installed import TESTS

# One process for all, in which TRL is asked once about files.
pytestmark = [pytest.mark.isolated(group="preflight-trl"), pytest.mark.needs("trl")]
YAML = TESTS / "configs" / "trl-h100-grpo-1.5b.yaml"
SHARE = "vllm_gpu_memory_utilization"
ONE_CARD = "accelerate.num_processes=1"
TRL = str(Path(sys.executable).with_name("trl"))


def doubts(report, failure):
    return [one for one in report["not_checked"] if one["failure"] == failure]


def test_a_sound_file_is_clean_and_checked(preflight):
    code, report = preflight("--hw=h100", "--prompt-tokens=1000", YAML, ONE_CARD)
    assert (code, report["findings"], report["missing"], report["trainer"]) == (0, [], [], "trl")
    assert {"trainer-engine-oom", "gpu-memory-utilization", "unknown-key", "max-tokens-overflow"} <= {
        *report["checked"]
    }


def test_trainer_memory_is_not_checked_without_the_file_for_accelerate(preflight):
    code, report = preflight("--hw=h100", YAML, "--prompt-tokens=1000")
    assert (code, report["result"]) == (3, "partial")
    assert report["missing"] == ["accelerate.num_processes", "accelerate.distributed_type"]
    (doubt,) = doubts(report, "trainer-engine-oom")
    assert "give its file beside TRL's" in doubt["why"]


@pytest.mark.parametrize("name", ["single_gpu", "multi_gpu", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"])
def test_reads_every_file_for_accelerate_that_trl_ships(preflight, name):
    file = Path(find_spec("trl").origin).parent / "accelerate_configs" / f"{name}.yaml"
    code, report = preflight("--hw=h100", YAML, file, "--prompt-tokens=1000")
    assert (code, report["findings"]) == (0, [])
    seven = preflight("--hw=h100", YAML, file, "model_name_or_path=Qwen/Qwen2.5-7B", "--prompt-tokens=1000")[1][
        "findings"
    ]
    assert bool(seven) == (name in ("single_gpu", "multi_gpu"))  # with which every card holds all of it


WRONG = [  # override, failure, key, of why, what to write
    ("vllm_gpu_mem_utilization=0.4", "unknown-key", "vllm_gpu_mem_utilization", "did you mean", f"{SHARE}=0.4"),
    ("loss_type=dr_grop", "unknown-value", "loss_type", "did you mean dr_grpo?", "loss_type=dr_grpo"),
    ("scale_rewards=groups", "unknown-value", "scale_rewards", "did you mean group?", "scale_rewards=group"),
    ("vllm_mode=collocate", "unknown-value", "vllm_mode", "did you mean colocate?", "vllm_mode=colocate"),
    ("max_completion_length=2000", "max-tokens-overflow", "max_completion_length", "2000 tokens do not", "=1048"),
    (f"{SHARE}=0.95", "gpu-memory-utilization", SHARE, "shares the card", f"{SHARE}=0.5"),
    (f"{SHARE}=0.75", "trainer-engine-oom", SHARE, "GiB too much", f"{SHARE}=0."),
    ("model_name_or_path=Qwen/Qwen2.5-7B", "trainer-engine-oom", "use_peft", "too much", "use_peft: true"),
]


@pytest.mark.parametrize(("override", "failure", "key", "why", "instead"), WRONG)
def test_a_wrong_override_is_found(preflight, override, failure, key, why, instead):
    code, report = preflight("--hw=h100", YAML, ONE_CARD, "--prompt-tokens=1000", override)
    (finding,) = report["findings"]
    assert (code, finding["failure"], finding["key"]) == (1, failure, key)
    assert why in finding["why"]
    assert instead in finding["instead"]


def test_a_command_is_read_by_its_own_parser(preflight):
    """A finding names the option and what to write there; what the command refuses is found."""
    words = [word.replace("0.35", "0.9") for word in command_of(LORA)[1:]]
    _, report = preflight("--hw=h100", "--prompt-tokens=1000", "--", TRL, *words, "--zzz", "1")
    assert [(one["failure"], one["argument"], one["instead"]) for one in report["findings"]] == [
        ("unknown-key", "--zzz", "# leave it out"),
        ("gpu-memory-utilization", f"--{SHARE} 0.9", f"--{SHARE} 0.5"),
    ]
    assert (report["program"], report["missing"]) == ("trl grpo", [])  # accelerate's file of the command was read


@pytest.mark.slow
def test_reads_a_script_with_trls_parser_under_accelerate(preflight, tmp_path, monkeypatch):
    """The file of --config is laid below options, its environment is set, and what follows the parser isn't run."""
    (tmp_path / "base.yaml").write_text(f"{SHARE}: 0.9\nuse_vllm: true\nenv:\n  A: 1\n", encoding="utf-8")
    (tmp_path / "one.yaml").write_text("distributed_type: 'NO'\nnum_processes: 8\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(
        "from trl import GRPOConfig, ModelConfig, TrlParser\n"
        "TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()\n"
        "open('it_ran', 'w')\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    launch = [str(Path(sys.executable).with_name("accelerate")), "launch", "--config_file", "one.yaml"]
    words = "--num_processes=1 train.py --config base.yaml --model_name Qwen/Qwen2.5-7B --output_dir out --zzz=1"
    code, report = preflight("--hw=h100", "--", *launch, *words.split())
    found = {(one["key"], one["file"], one["line"], one["instead"]) for one in report["findings"]}
    assert ("zzz", None, None, "# leave it out") in found
    assert (SHARE, "base.yaml", 1, f"{SHARE}: 0.5") in found
    assert (code, report["program"], Path("it_ran").exists()) == (1, "train.py", False)


@pytest.mark.slow
def test_finds_an_argument_that_the_trainer_no_longer_takes(preflight, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import AutoTokenizer\n"
        "from trl import SFTConfig, SFTTrainer\n"
        "tok = AutoTokenizer.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
        "config = SFTConfig(output_dir='out')\n"
        "SFTTrainer(\n    model='Qwen/Qwen2.5-0.5B',\n    tokenizer=tok,\n    args=config,\n)\n",
        encoding="utf-8",
    )
    code, report = preflight("--hw=h100", "--", sys.executable, str(script))
    [finding] = [one for one in report["findings"] if one["key"] == "tokenizer"]
    assert (code, finding["failure"], finding["instead"]) == (1, "unknown-key", "processing_class=tok")
