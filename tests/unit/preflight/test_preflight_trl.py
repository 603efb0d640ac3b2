"""``rlregress preflight``: TRL's and accelerate's YAML where TRL isn't installed."""

from __future__ import annotations

from installed import TESTS

from pytest_rlregress.cli import main

YAML = TESTS / "configs" / "trl-h100-grpo-1.5b.yaml"
SHARDED = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n"


def test_rejects_a_file_for_accelerate_alone(tmp_path, capsys):
    (tmp_path / "sharded.yaml").write_text(SHARDED, encoding="utf-8")
    assert main(["preflight", str(tmp_path / "sharded.yaml")]) == 2
    assert "give TRL's beside it" in capsys.readouterr().err


def test_without_trl_only_a_file_can_be_checked(capsys):
    assert main(["preflight", "--hw=h100", "--", "trl", "grpo", "--config", str(YAML)]) == 2
    assert f"there is no trl. Its file can be checked without it: rlregress preflight {YAML}" in capsys.readouterr().err
    assert (
        main(["preflight", "--hw=h100", str(YAML), "accelerate.num_processes=1", "vllm_gpu_mem_utilization=0.4"]) == 1
    )
    printed = capsys.readouterr().out
    assert "    vllm_gpu_memory_utilization=0.4\n" in printed
    assert "trl is not installed here" in printed
