"""verl's configuration and TRL's refuse a key where they do not have it: the other place does not count."""

import importlib.util
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act

# Where somebody writes it, by where verl has it.
VERL_KEYS = {
    "data.train_batch_size": "trainer.train_batch_size=8",
    "actor_rollout_ref.rollout.n": "data.n=8",
    "actor_rollout_ref.actor.optim.lr": "actor_rollout_ref.actor.lr=1e-6",
    "actor_rollout_ref.actor.fsdp_config.param_offload": "actor_rollout_ref.actor.param_offload=true",
    "actor_rollout_ref.model.use_remove_padding": "actor_rollout_ref.rollout.use_remove_padding=false",
}
# TRL's GRPOConfig with a key of its ModelConfig.
LORA_OF_MODEL = "output_dir: runs\nuse_cpu: true\nbf16: false\nlora_r: 8\n"


@pytest.mark.reproduces("config-key-placement", fidelity="real")
@pytest.mark.needs("verl", "hydra")
@pytest.mark.parametrize("written", VERL_KEYS.values(), ids=VERL_KEYS)
def test_verl_has_no_such_key(written):
    from hydra import compose, initialize_config_dir

    verl = importlib.util.find_spec("verl").origin
    with act(), initialize_config_dir(str(Path(verl).parent / "trainer" / "config"), version_base=None):
        compose("ppo_trainer", overrides=[written])


@pytest.mark.reproduces("config-key-placement", fidelity="real")
@pytest.mark.needs("trl-trainer")
@pytest.mark.parametrize("how", ["keyword", "argument", "file"])
def test_trl_has_no_such_key(how, tmp_path):
    from trl import TrlParser
    from trl.trainer.grpo_config import GRPOConfig

    with act():
        if how == "keyword":
            GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, lora_r=8)
            return
        file = tmp_path / "grpo.yaml"
        file.write_text(LORA_OF_MODEL)
        arguments = [word for line in LORA_OF_MODEL.splitlines() for word in f"--{line}".split(": ")]
        TrlParser((GRPOConfig,)).parse_args_and_config(arguments if how == "argument" else ["--config", str(file)])
