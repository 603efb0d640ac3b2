"""``rlregress preflight``: TRL's configurations: YAML, accelerate's beside it, and the command line of a script."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from commands import LORA, command_of
from installed import TESTS

from pytest_rlregress.cli import main
from pytest_rlregress.preflight.document import read
from pytest_rlregress.preflight.sources import folder_of

CONFIGS = TESTS / "configs"
YAML = CONFIGS / "trl-h100-grpo-1.5b.yaml"
needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")
SHARE = "vllm_gpu_memory_utilization"
ONE_CARD = "accelerate.num_processes=1"
SHARDED = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\nnum_processes: 8\n"
)


@pytest.fixture
def preflight(capsys):
    """Run the command for an H100: its exit code, and the report."""

    def preflight(*arguments, hw="h100"):
        code = main(["preflight", f"--hw={hw}", "--json", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else printed.err

    return preflight


def doubts(report, failure):
    return [one for one in report["not_checked"] if one["failure"] == failure]


@needs_trl
@pytest.mark.parametrize("arguments", [(YAML, ONE_CARD), ("--", *command_of(LORA))], ids=["yaml", "command"])
def test_a_sound_configuration_is_clean_and_checked(preflight, arguments):
    code, report = preflight("--prompt-tokens=1000", *arguments)
    assert (code, report["findings"], report["missing"], report["trainer"]) == (0, [], [], "trl")
    assert {"trainer-engine-oom", "gpu-memory-utilization", "unknown-key", "max-tokens-overflow"} <= {
        *report["checked"]
    }


@needs_trl
def test_without_accelerates_file_the_trainers_memory_is_not_checked(preflight):
    code, report = preflight(YAML, "--prompt-tokens=1000")
    assert (code, report["result"]) == (3, "partial")
    assert report["missing"] == ["accelerate.num_processes", "accelerate.distributed_type"]
    (doubt,) = doubts(report, "trainer-engine-oom")
    assert "give its file beside TRL's" in doubt["why"]


@needs_trl
@pytest.mark.parametrize("name", ["single_gpu", "multi_gpu", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"])
def test_every_file_for_accelerate_that_trl_brings_is_read(preflight, name):
    file = folder_of("trl") / "accelerate_configs" / f"{name}.yaml"
    code, report = preflight(YAML, file, "--prompt-tokens=1000")
    assert (code, report["findings"]) == (0, [])
    seven = preflight(YAML, file, "model_name_or_path=Qwen/Qwen2.5-7B", "--prompt-tokens=1000")[1]["findings"]
    assert bool(seven) == (name in ("single_gpu", "multi_gpu"))  # with which every card holds all of it


WRONG = [  # file, override, failure, key, of why, what to write
    (YAML, "vllm_gpu_mem_utilization=0.4", "unknown-key", "vllm_gpu_mem_utilization", "did you mean", f"{SHARE}=0.4"),
    (YAML, "loss_type=dr_grop", "unknown-value", "loss_type", "did you mean dr_grpo?", "loss_type=dr_grpo"),
    (YAML, "scale_rewards=groups", "unknown-value", "scale_rewards", "did you mean group?", "scale_rewards=group"),
    (YAML, "vllm_mode=collocate", "unknown-value", "vllm_mode", "did you mean colocate?", "vllm_mode=colocate"),
    (YAML, "max_completion_length=2000", "max-tokens-overflow", "max_completion_length", "2000 tokens do not", "=1048"),
    (YAML, f"{SHARE}=0.95", "gpu-memory-utilization", SHARE, "shares the card", f"{SHARE}=0.5"),
    (YAML, f"{SHARE}=0.75", "trainer-engine-oom", SHARE, "GiB too much", f"{SHARE}=0."),
    (YAML, "model_name_or_path=Qwen/Qwen2.5-7B", "trainer-engine-oom", "use_peft", "too much", "use_peft: true"),
    (None, "vllm_gpu_mem_utilization=0.4", "unknown-key", "vllm_gpu_mem_utilization", "did you", f"{SHARE}=0.4"),
    (None, f"{SHARE}=0.9", "gpu-memory-utilization", SHARE, "shares the card", f"{SHARE}=0.5"),
]


@needs_trl
@pytest.mark.parametrize(("file", "override", "failure", "key", "why", "instead"), WRONG)
def test_a_wrong_override_is_found(preflight, file, override, failure, key, why, instead):
    given = [file] if file else []
    command = [] if file else ["--", *command_of(LORA)]
    code, report = preflight(
        *given, ONE_CARD, "gradient_accumulation_steps=4", "--prompt-tokens=1000", override, *command
    )
    (finding,) = report["findings"]
    assert (code, finding["failure"], finding["key"]) == (1, failure, key)
    assert why in finding["why"]
    assert instead in finding["instead"]


@needs_trl
def test_a_finding_names_the_option_and_what_to_write_there(preflight):
    words = [word.replace("0.35", "0.9") for word in command_of(LORA)]
    (finding,) = preflight("--prompt-tokens=1000", "--", *words)[1]["findings"]
    assert (finding["file"], finding["argument"]) == (None, f"--{SHARE} 0.9")
    assert finding["instead"] == f"--{SHARE} 0.5"


def test_a_script_of_somebodys_own(preflight):
    words = "accelerate launch --num_processes 1 train.py --model_name_or_path Qwen/Qwen2.5-7B --use_vllm true"
    words += " --vllm_mode colocate --per_device_train_batch_size 2 --vllm_gpu_memory_utilization 0.9"
    _, report = preflight("--", *words.split(), "--model_name_or_path_b", "other", "--lora_r_b=8")
    (finding,) = report["findings"]
    assert (finding["failure"], finding["argument"]) == ("gpu-memory-utilization", f"--{SHARE} 0.9")
    (doubt,) = doubts(report, "trainer-engine-oom")
    assert (doubt["missing"], "train.py" in doubt["why"]) == (["use_peft"], True)
    if find_spec("trl"):
        (doubt,) = doubts(report, "unknown-key")
        assert "model_name_or_path_b, lora_r_b: whether train.py reads it" in doubt["why"]


@needs_trl
def test_trls_command_refuses_what_it_does_not_know_and_takes_what_is_shortened(preflight):
    words = "trl grpo --model_name Qwen/Qwen2.5-0.5B --dataset_name x --no_gradient_checkpointing --zzz 1"
    _, report = preflight("--", *words.split())
    assert [(one["key"], one["instead"]) for one in report["findings"]] == [("zzz", "leave it out")]


def test_the_command_is_read_as_its_parser_does(tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text("beta: 0.1\nlearning_rate: 1e-6\nenv:\n  A: 1\n", encoding="utf-8")
    (tmp_path / "sharded.yaml").write_text(SHARDED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = "env B=2 accelerate launch --config_file sharded.yaml --num_processes=4 train.py --config base.yaml"
    words += " --use-vllm --model_name_or_path=me/7B --reward_funcs a b --beta 0.2"
    config = read([], {}, words.split())
    own = ("beta", "learning_rate", "use_vllm", "model_name_or_path", "reward_funcs")
    assert [config.get(key) for key in own] == [0.2, "1e-6", True, "me/7B", ["a", "b"]]
    assert [config.get(f"accelerate.{key}") for key in ("num_processes", "distributed_type")] == [4, "FSDP"]
    assert (config.environ, config.program) == ({"A": "1", "B": "2"}, "train.py")
    assert [str(config.place(key)) for key in ("beta", "learning_rate")] == ["--beta 0.2", "base.yaml:2"]


@pytest.mark.parametrize(
    ("start", "cards"),
    [
        ("python train.py", 1),
        ("nohup accelerate launch --num_processes 2 train.py", 2),
        ("python -m accelerate.commands.launch train.py", None),
        ("env CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py", 2),
        ("uv run trl grpo", None),
    ],
)
def test_how_many_processes_a_command_starts(start, cards):
    config = read([], {}, f"{start} --model_name_or_path me/7B --output_dir out".split())
    assert (config.trainer, config.get("accelerate.num_processes")) == ("trl", cards)


def test_accelerates_file_alone_is_none_of_trl(preflight, tmp_path):
    (tmp_path / "sharded.yaml").write_text(SHARDED, encoding="utf-8")
    code, error = preflight(tmp_path / "sharded.yaml")
    assert (code, "give TRL's beside it" in error) == (2, True)
    words = f"accelerate launch --config_file {YAML} x.py --use_vllm --beta 0 --output_dir o"
    code, error = preflight("--", *words.split())
    assert (code, "no configuration of accelerate" in error) == (2, True)
