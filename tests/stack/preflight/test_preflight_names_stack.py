"""``rlregress preflight``: keys and values as the installed verl takes them, in files and in commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import TOY, command_of
from installed import TESTS

# One process for all, in which verl is asked once.
pytestmark = [pytest.mark.isolated(group="preflight-verl"), pytest.mark.needs("verl-trainer")]
GSPO = TESTS / "configs" / "verl-h200-gspo-3b.yaml"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("RAY_ADDRESS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def start():
    """Return the start of a command of verl's, by this interpreter."""
    return [sys.executable, "-m", "verl.trainer.main_ppo"]


MISSPELT = [  # what somebody writes instead, the unknown key, what is told, what to write
    (
        f"{ROLLOUT}.gpu_mem_utilization=0.6",
        "did you mean gpu_memory_utilization?",
        f"{ROLLOUT}.gpu_memory_utilization=0.6",
    ),
    (f"{ROLLOUT}.gpu_memory_utilisation=0.6", "did you mean gpu_memory_utilization?", f"{ROLLOUT}.gpu_memory_"),
    ("data.max_prompt_lenght=9", "did you mean max_prompt_length?", "data.max_prompt_length=9"),
    ("data.train_file=a.parquet", "did you mean train_files?", "data.train_files=a.parquet"),
    ("trainer.n_gpu_per_node=4", "did you mean n_gpus_per_node?", "trainer.n_gpus_per_node=4"),
    ("actor_rollout_ref.rollouts.n=4", "did you mean rollout?", "# actor_rollout_ref.rollout in place of actor_"),
]


@pytest.mark.parametrize("sign", ["", "+", "++"])
@pytest.mark.parametrize(("override", "told", "instead"), MISSPELT, ids=lambda text: text.partition("=")[0])
def test_finds_a_misspelt_key_in_an_override(preflight_names, sign, override, told, instead):
    code, ((failure, _, why, write),), doubts = preflight_names(GSPO, f"{sign}{override}")
    assert (code, failure, doubts) == (1, "unknown-key", [])
    assert told in why
    assert write.startswith(instead)
    assert why.startswith("verl ")


def test_finds_a_misspelt_key_in_a_file(preflight_names, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(GSPO.read_text(encoding="utf-8").replace("gpu_memory_util", "gpu_mem_util"), encoding="utf-8")
    _, ((_, key, why, write),), _ = preflight_names(file)
    assert (key, write) == (f"{ROLLOUT}.gpu_mem_utilization", "gpu_memory_utilization: 0.4")
    assert "did you mean gpu_memory_utilization?" in why


def test_finds_a_key_of_another_table(preflight_names):
    _, ((_, key, why, write),), _ = preflight_names(GSPO, "+data.n=8")
    assert (key, write) == ("data.n", f"{ROLLOUT}.n=8")
    assert f"did you mean {ROLLOUT}.n?" in why


@pytest.mark.parametrize(
    "override",
    [
        "+data.for_my_own_dataset=1",
        f"+{ROLLOUT}.engine_kwargs.vllm.any_of_its_own=1",
        "+actor_rollout_ref.model.override_config.rope_scaling=1",
        "+ray_kwargs.ray_init.runtime_env.env_vars.ANY=1",
        "model_engine=megatron",
        "~critic",
    ],
)
def test_accepts_a_key_added_on_purpose(preflight_names, override):
    code, found, _ = preflight_names(GSPO, override)
    assert (code, found) == (0, [])


VALUES = [
    ("algorithm.adv_estimator=grop", "did you mean grpo?"),
    ("actor_rollout_ref.actor.loss_agg_mode=token_mean", "did you mean token-mean?"),
    ("actor_rollout_ref.actor.strategy=fsdp3", "did you mean fsdp?"),
    (f"{ROLLOUT}.name=vlm", "did you mean vllm?"),
    ("actor_rollout_ref.actor.policy_loss.loss_mode=gsop", "did you mean gspo?"),
]


@pytest.mark.parametrize(("override", "told"), VALUES, ids=lambda text: text.partition("=")[0])
def test_finds_an_unknown_value(preflight_names, override, told):
    code, ((failure, key, why, write),), _ = preflight_names(GSPO, override)
    assert (code, failure, key) == (1, "unknown-value", override.partition("=")[0])
    assert told in why
    assert write == f"{key}={told.split()[-1].rstrip('?')}"


def test_a_command_is_composed_by_its_own_program(preflight_names, start):
    """Hydra says what it refuses; what stands in the place of a value that is left out is verl's own."""
    code, found, _ = preflight_names(
        *("--", *start, *command_of(TOY)[3:]),
        *("data.zzz=1", "+data.yyy=1", "+data.n=8", "+actor_rollout_ref.actor.zzz=1"),
        *("+trainer.critic_warmup=2", "+trainer.default_hdfs_dir=x", "algorithm.adv_estimator=my_own_estimator"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=64", "trainer.nnodes=${oc.env:NO_SUCH_NODES}"),
    )
    told = {key: (failure, instead.partition(":")[0]) for failure, key, _, instead in found}
    assert told == {
        "data.zzz": ("unknown-key", "# leave it out, or +data.zzz=1 for code of your own"),
        "data.n": ("unknown-key", f"{ROLLOUT}.n=8"),
        "actor_rollout_ref.actor.zzz": ("unknown-key", "# leave it out"),
        "trainer.critic_warmup": ("added-key", "trainer.critic_warmup=2"),
        "algorithm.adv_estimator": ("unknown-value", "# one of"),
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": (
            "refused-values",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
        ),
    }
    assert code == 1


@pytest.mark.slow
def test_custom_program_is_composed_with_its_own_keys(preflight_names, tmp_path, monkeypatch):
    """A recipe's configuration is composed with its own file, and its main function isn't run."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.yaml").write_text(
        "hydra:\n  searchpath: [pkg://verl.trainer.config]\ndefaults: [ppo_trainer, _self_]\ndata: {mine: 1}\n",
        encoding="utf-8",
    )
    (tmp_path / "main_mine.py").write_text(
        "import hydra\n"
        "@hydra.main(config_path='config', config_name='mine', version_base=None)\n"
        "def main(config):\n    open('it_ran', 'w')\n"
        "main()\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    overrides = ["data.mine=2", "data.zzz=1", "algorithm.adv_estimator=my_own_estimator"]
    code, found, doubts = preflight_names("--", sys.executable, "main_mine.py", *overrides)
    assert (code, [key for _, key, _, _ in found]) == (1, ["data.zzz"])
    assert "my_own_estimator: whether the run registers it is not known here" in " ".join(doubts)
    assert not Path("it_ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["", "megatron_", "veomni_", "torchtitan_"])
def test_configurations_composed_by_verl_are_clean(preflight_names, engine):
    import verl

    file = Path(verl.__file__).parent / "trainer" / "config" / f"_generated_ppo_{engine}trainer.yaml"
    if not file.is_file():
        pytest.skip(f"this verl has no {file.name}")
    _, found, doubts = preflight_names(file)
    keys = [key for failure, key, *_ in found if failure == "refused-values"]
    assert len(keys) == len(found)
    assert all(key.endswith("micro_batch_size_per_gpu") for key in keys), "verl's own settings have none, and it asks"
    assert [doubt for doubt in doubts if not doubt.startswith("how many attention heads")] == [], "of a model not here"
