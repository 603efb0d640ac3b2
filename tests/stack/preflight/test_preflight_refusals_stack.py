"""verl and TRL refuse the values that the rule about refused values finds, and take those that it does not find."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = [pytest.mark.isolated(group="preflight-refusals"), pytest.mark.slow]
A = "actor_rollout_ref"
SIZES = [
    f"{A}.actor.ppo_micro_batch_size_per_gpu=4",
    f"{A}.rollout.log_prob_micro_batch_size_per_gpu=4",
    f"{A}.model.path=a/b",
    f"{A}.rollout.name=vllm",
    "critic.enable=false",
    "data.train_batch_size=256",
]
FILTER = "algorithm.filter_groups"
#: What is changed, the key that preflight names, what verl says.
REFUSED = {
    "no size": ([f"{A}.actor.ppo_micro_batch_size_per_gpu=null"], "set at least one of"),
    "two sizes": ([f"{A}.actor.ppo_micro_batch_size=8"], "You have set both"),
    "no size of log-probabilities": ([f"{A}.rollout.log_prob_micro_batch_size_per_gpu=null"], "set at least one of"),
    "padding": (
        [f"{A}.actor.ulysses_sequence_parallel_size=2", f"{A}.model.use_remove_padding=false"],
        "must enable `use_remove_padding`",
    ),
    "greedy": (
        [f"{A}.rollout.val_kwargs.do_sample=true", f"{A}.rollout.temperature=0"],
        "temperature should be greater than 0",
    ),
    "mode": ([f"{A}.rollout.mode=sync"], "mode 'sync' has been removed"),
    "no metric": ([f"{FILTER}.enable=true", f"{FILTER}.metric=null"], "metric must be set"),
    "late metric": (
        [f"{FILTER}.enable=true", f"{FILTER}.metric=acc", "reward.reward_model.enable=true"],
        "requires the reward metric at sampling time",
    ),
    "no step": (["trainer.resume_mode=resume_path", "trainer.resume_from_path=/a/b"], "must specify the global_steps"),
}


def compose(changes):
    import hydra
    import verl

    folder = Path(verl.__file__).parent / "trainer/config"
    with hydra.initialize_config_dir(str(folder), version_base=None):
        return hydra.compose("ppo_trainer", [*SIZES, *changes])


def start(config):
    """Run verl's own checks of a configuration, as its trainer does before it starts an engine."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    validate_config(config, use_reference_policy=False, use_critic=False)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    PPOTrainer._resolve_filter_groups_metric(SimpleNamespace(config=config))
    if config.trainer.resume_mode == "resume_path":
        PPOTrainer._load_checkpoint(SimpleNamespace(config=config))


def found(preflight, *command):
    _, report = preflight("--hw=h200", "--", *command)
    return [one for one in report["findings"] if one["failure"] == "refused-values"]


@pytest.mark.needs("verl-trainer")
@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_verl_refuses_what_is_found(preflight, changes, said):
    words = [sys.executable, "-m", "verl.trainer.main_ppo", *SIZES]
    (finding,) = found(preflight, *words, *changes)
    with pytest.raises(Exception, match=re.escape(said)):
        start(compose(changes))
    assert finding["instead"]


@pytest.mark.needs("verl-trainer")
def test_verl_takes_what_is_not_found(preflight):
    assert found(preflight, sys.executable, "-m", "verl.trainer.main_ppo", *SIZES) == []
    start(compose([]))


@pytest.mark.needs("trl")
@pytest.mark.parametrize(("batch", "is_refused"), [(3, True), (4, False)])
def test_trl_takes_whole_groups_in_an_evaluation(tmp_path, batch, is_refused):
    from trl import GRPOConfig

    from pytest_rlregress.commands.preflight.command import read
    from pytest_rlregress.commands.preflight.refusals import refused_values

    file = tmp_path / "grpo.yaml"
    file.write_text("model_name_or_path: a\noutput_dir: out\nnum_generations: 4\neval_strategy: steps\n")
    run = read([str(file), "accelerate.num_processes=1", f"per_device_eval_batch_size={batch}"], {})
    assert bool([*refused_values(run)]) is is_refused
    given = {"num_generations": 4, "eval_strategy": "steps", "per_device_eval_batch_size": batch}
    with pytest.raises(ValueError, match="global eval batch size") if is_refused else nullcontext():
        GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], eval_steps=1, **given)


@pytest.mark.needs("trl", "vllm")
def test_trl_refuses_processes_that_are_no_whole_engines():
    from trl.generation.vllm_generation import VLLMGeneration

    accelerator = SimpleNamespace(num_processes=3)
    generation = SimpleNamespace(model=None, accelerator=accelerator, mode="colocate", tensor_parallel_size=2)
    with pytest.raises(ValueError, match="must divide world size"):
        VLLMGeneration._init_vllm(generation)


@pytest.mark.needs("trl")
@pytest.mark.parametrize("packing", ["true", "false"])
def test_reads_padding_free_in_a_command_of_sft(preflight, packing):
    trl = str(Path(sys.executable).with_name("trl"))
    options = ["--model_name_or_path", "a/b", "--dataset_name", "c", "--output_dir", "out", "--padding_free", "true"]
    keys = [one["key"] for one in found(preflight, trl, "sft", *options, "--packing", packing)]
    assert keys == ([] if packing == "true" else ["packing"])
