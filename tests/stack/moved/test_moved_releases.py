"""Documented moves and breaks in releases of the real index; without a network there is nothing to read."""

import json
import shutil
import sysconfig
import urllib.error
import urllib.request

import pytest

from pytest_rlregress.cli import main

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def network():
    try:
        urllib.request.urlopen("https://pypi.org/simple/verl/", timeout=10).close()
    except (OSError, urllib.error.URLError):
        pytest.skip("no network: the index can't be asked")


def ask(capsys, releases, *command):
    code = main(["moved", releases, "--json", "--", *command])
    printed = capsys.readouterr()
    assert code in (0, 1, 3), printed.err
    return {one["key"]: one for one in json.loads(printed.out)["findings"] if one["concerns"]}


GRPO = ("trl", "grpo", "--use_vllm", "true", "--use_liger_loss", "true", "--max_prompt_length", "512")
VERL = ("python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo")


@pytest.mark.parametrize(
    ("key", "before", "after", "release"),
    [
        ("vllm_mode", "server", "colocate", "1.0.0"),  # TRL's migration guide
        ("max_completion_length", 256, 512, "1.10.0"),  # huggingface/trl#6264
        ("use_bias_correction_kl", False, True, "1.10.0"),  # huggingface/trl#6503
        ("use_liger_loss", None, None, "0.28.0"),  # huggingface/trl#4364
        ("max_prompt_length", None, None, "0.28.0"),  # huggingface/trl#4847
    ],
)
def test_names_documented_moves_of_trl(capsys, key, before, after, release):
    found = ask(capsys, "trl==0.27.2..1.10.0", *GRPO)[key]
    assert (found["before"], found["after"], found["release"]) == (before, after, release)


def test_names_the_key_that_took_the_place_of_another(capsys):
    assert ask(capsys, "trl==0.27.2..1.10.0", *GRPO)["use_liger_loss"]["instead"] == "use_liger_kernel"


@pytest.mark.parametrize(
    ("key", "before", "after", "release"),
    [
        ("actor_rollout_ref.rollout.mode", "sync", "async", "0.7.0"),  # verl-project/verl#4106
        ("trainer.use_v1", None, True, "0.9.0"),  # verl-project/verl#6823
        ("actor_rollout_ref.rollout.max_num_seqs", 1024, 256, "0.9.0"),  # verl-project/verl#7670
        ("actor_rollout_ref.rollout.calculate_log_probs", False, True, "0.9.0"),
    ],
)
def test_names_documented_moves_of_verl(capsys, key, before, after, release):
    pytest.importorskip("hydra", reason="composes verl's configuration")
    found = ask(capsys, "verl==0.6.1..0.9.0", *VERL)[key]
    assert (found["before"], found["after"], found["release"]) == (before, after, release)


def test_names_a_key_of_verl_that_is_gone(capsys):
    pytest.importorskip("hydra", reason="composes verl's configuration")
    key = "critic.model.fsdp_config.param_offload"
    found = ask(capsys, "verl==0.7.1..0.8.0", *VERL, f"{key}=True")[key]
    assert (found["release"], found["instead"], found["sure"]) == ("0.8.0", "critic.fsdp.param_offload", False)


@pytest.mark.skipif(shutil.which("ty", path=f"{sysconfig.get_path('scripts')}") is None, reason="ty is an extra")
def test_finds_the_public_break_of_trl_by_vllm(tmp_path):
    """huggingface/trl#4633: vLLM 0.12.0 has no GuidedDecodingParams."""
    from made_wheels import open_releases

    from pytest_rlregress.commands.moved.binding import find_unbound
    from pytest_rlregress.commands.moved.facts import Facts
    from pytest_rlregress.commands.moved.wheels import PYTHON, TRAINER

    releases = open_releases(tmp_path, indexes=["https://pypi.org/simple"])
    trainer = releases.read("trl", "0.24.0", TRAINER)
    engines = releases.read("vllm", "0.11.2", PYTHON), releases.read("vllm", "0.12.0", PYTHON)
    found = find_unbound(trainer, engines, "vllm", Facts(tmp_path / "facts"))
    assert {one.text for one in found} == {"Module `vllm.sampling_params` has no member `GuidedDecodingParams`"}
    assert len(found) == 4
