"""``rlregress preflight``: misspelt keys, keys that the trainer refuses, and values that it does not take."""

from __future__ import annotations

import json
import re
import textwrap
from importlib.util import find_spec

import pytest
from commands import START, TOY, command_of, with_start
from installed import TESTS

from pytest_rlregress.cli import main
from pytest_rlregress.preflight import installed_schema, names, rules
from pytest_rlregress.preflight.sources import classes_in, fields_of, folder_of, texts_of

CONFIGS = TESTS / "configs"
GSPO = CONFIGS / "verl-h200-gspo-3b.yaml"
needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")


@pytest.fixture(autouse=True)
def no_address(monkeypatch):
    for name in ("RAY_ADDRESS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def script(override, start=START):
    """Return the toy run's command with one more override, or another start."""
    return ["--", *with_start(start, override)]


@pytest.fixture
def preflight(capsys):
    """Run the command: its exit code, (failure, key, why, instead) of what is about names, and their doubts."""

    def preflight(*arguments):
        code = main(["preflight", "--hw=h200", "--json", *map(str, arguments)])
        report = json.loads(capsys.readouterr().out)
        found = [
            (one["failure"], one["key"], one["why"], one["instead"])
            for one in report["findings"]
            if one["failure"] in rules.OWN
        ]
        doubts = [one["why"] for one in report["not_checked"] if one["failure"] in rules.OWN]
        return code, found, doubts

    return preflight


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(installed_schema, "folder_of", lambda package: None)
    installed_schema.verl_schema.cache_clear()
    installed_schema.trl_schema.cache_clear()
    yield
    installed_schema.verl_schema.cache_clear()
    installed_schema.trl_schema.cache_clear()


ROLLOUT = "actor_rollout_ref.rollout"
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
    ("actor_rollout_ref.rollouts.n=4", "did you mean rollout?", "actor_rollout_ref.rollout"),
]


@needs_verl
@pytest.mark.parametrize("sign", ["", "+", "++"])
@pytest.mark.parametrize(("override", "told", "instead"), MISSPELT, ids=lambda text: text.partition("=")[0])
def test_a_misspelt_key_of_an_override(preflight, sign, override, told, instead):
    code, ((failure, _, why, write),), doubts = preflight(GSPO, f"{sign}{override}")
    assert (code, failure, doubts) == (1, "unknown-key", [])
    assert told in why
    assert write.startswith(instead)
    assert why.startswith("verl ")


@needs_verl
def test_a_misspelt_key_of_a_file(preflight, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(GSPO.read_text(encoding="utf-8").replace("gpu_memory_util", "gpu_mem_util"), encoding="utf-8")
    _, ((_, key, why, write),), _ = preflight(file)
    assert (key, write) == (f"{ROLLOUT}.gpu_mem_utilization", "gpu_memory_utilization: 0.4")
    assert "did you mean gpu_memory_utilization?" in why


@needs_verl
def test_a_key_of_another_table(preflight):
    _, ((_, key, why, write),), _ = preflight(GSPO, "+data.n=8")
    assert (key, write) == ("data.n", f"{ROLLOUT}.n=8")
    assert f"did you mean {ROLLOUT}.n?" in why


@needs_verl
@pytest.mark.parametrize(
    "override",
    [
        "+data.for_my_own_dataset=1",
        f"+{ROLLOUT}.engine_kwargs.vllm.any_of_its_own=1",
        "+actor_rollout_ref.model.override_config.rope_scaling=1",
        "+ray_kwargs.ray_init.runtime_env.env_vars.ANY=1",
        "actor_rollout_ref.actor.megatron.use_mbridge=true",  # of another engine of the same release
        "model_engine=megatron",
        "~critic",
    ],
)
def test_what_is_meant_to_be_new_is_nothing(preflight, override):
    code, found, _ = preflight(GSPO, override)
    assert (code, found) == (0, [])


@needs_verl
def test_what_the_trainer_refuses_is_found_without_a_near_name(preflight):
    _, ((_, key, _, write),), _ = preflight(*script("data.zzz=1"))  # Hydra, which adds keys only with a plus sign
    assert (key, write.startswith("leave it out, or +data.zzz")) == ("data.zzz", True)
    assert preflight(*script("+data.zzz=1"))[1:] == ([], [])
    _, ((_, key, _, write),), _ = preflight(*script("+actor_rollout_ref.actor.zzz=1"))  # the dataclass of that table
    assert (key, write) == ("actor_rollout_ref.actor.zzz", "leave it out")
    _, (one,), _ = preflight(
        *script("data.zzz=1", f"{START} --config-path=config --config-name=ppo_megatron_trainer.yaml")
    )
    assert one[1] == "data.zzz"
    _, found, (doubt,) = preflight(*script("data.zzz=1", "python3 -m verl.trainer.sft_trainer"))
    assert (found, doubt) == ([], "the keys of verl.trainer.sft_trainer are not known here")
    for start in ("python3 -m recipe.mine.main", f"{START} --config-name=mine"):  # which may have keys of its own
        _, found, (doubt,) = preflight(*script("data.zzz=1", start))
        assert found == []
        assert "data.zzz" in doubt


@needs_verl
def test_what_hydra_refuses_to_add_is_found(preflight):
    _, ((failure, key, why, write),), _ = preflight(*script("+trainer.critic_warmup=2"))
    assert (failure, key, write) == ("added-key", "trainer.critic_warmup", "trainer.critic_warmup=2")
    assert why.endswith("has the key trainer.critic_warmup: Hydra refuses to add it")
    _, ((_, _, _, write),), _ = preflight(*script("+trainer.val_before_train=False"))
    assert write == "trainer.val_before_train=false"
    _, ((_, _, _, write),), _ = preflight(*script("+trainer.critic_warmup="))
    assert write == "trainer.critic_warmup"
    for allowed in (
        "++trainer.critic_warmup=2",
        "trainer.critic_warmup=2",
        "+trainer.default_hdfs_dir=x",
    ):  # null there
        assert preflight(*script(allowed))[1] == []
    assert preflight(*script("+trainer.critic_warmup=2", "python3 -m recipe.mine.main"))[1] == []


@needs_verl
@pytest.mark.parametrize("engine", ["ppo_trainer", pytest.param("ppo_megatron_trainer", marks=pytest.mark.slow)])
def test_hydra_refuses_to_add_what_has_a_value(engine):
    hydra = pytest.importorskip("hydra")
    preset = sorted(key for key in installed_schema.verl_schema().preset if not re.search(r"\.\d|_target_", key))
    assert len(preset) > 200
    with hydra.initialize_config_dir(str(folder_of("verl") / "trainer" / "config"), version_base=None):
        for key in preset[:: len(preset) // 12]:
            with pytest.raises(hydra.errors.ConfigCompositionException, match="Could not append to config"):
                hydra.compose(engine, [f"+{key}=1"])


VALUES = [
    ("algorithm.adv_estimator=grop", "did you mean grpo?"),
    ("actor_rollout_ref.actor.loss_agg_mode=token_mean", "did you mean token-mean?"),
    ("actor_rollout_ref.actor.strategy=fsdp3", "did you mean fsdp?"),
    (f"{ROLLOUT}.name=vlm", "did you mean vllm?"),
    ("actor_rollout_ref.actor.policy_loss.loss_mode=gsop", "did you mean gspo?"),
]


@needs_verl
@pytest.mark.parametrize(("override", "told"), VALUES, ids=lambda text: text.partition("=")[0])
def test_an_unknown_value(preflight, override, told):
    code, ((failure, key, why, write),), _ = preflight(GSPO, override)
    assert (code, failure, key) == (1, "unknown-value", override.partition("=")[0])
    assert told in why
    assert write == f"{key}={told.split()[-1].rstrip('?')}"


@needs_verl
def test_a_value_that_the_run_may_register_itself(preflight):
    own = ["--", *(word.replace("=grpo", "=my_own_estimator") for word in command_of(TOY))]
    _, ((_, _, why, _),), _ = preflight(*own)
    assert "it takes gae, " in why
    _, found, (doubt,) = preflight(*own, "actor_rollout_ref.model.external_lib=mine")
    assert found == []
    assert "my_own_estimator" in doubt


@needs_verl
@pytest.mark.parametrize("engine", ["", "megatron_", "veomni_", "torchtitan_"])
def test_what_verl_composes_itself_is_clean(preflight, engine):
    file = folder_of("verl") / "trainer" / "config" / f"_generated_ppo_{engine}trainer.yaml"
    if not file.is_file():
        pytest.skip(f"this verl has no {file.name}")
    assert preflight(file)[1:] == ([], [])


@needs_verl
@pytest.mark.parametrize("name", ["sft_trainer_engine", "evaluation"])
def test_what_verl_brings_for_other_trainers_is_not_compared(preflight, name):
    file = folder_of("verl") / "trainer" / "config" / f"{name}.yaml"
    if not file.is_file():
        pytest.skip(f"this verl has no {file.name}")
    _, found, (doubt,) = preflight(file)
    assert found == []
    assert "actor_rollout_ref" in doubt


@pytest.mark.usefixtures("nothing_installed")
def test_without_verl_what_is_known_is_compared_and_that_is_said(preflight):
    _, found, doubts = preflight(
        GSPO, f"{ROLLOUT}.gpu_mem_utilization=0.6", "algorithm.adv_estimator=newer", "data.zz=1"
    )
    assert [key for _, key, _, _ in found] == [f"{ROLLOUT}.gpu_mem_utilization"]
    assert ["verl is not installed here" in doubt for doubt in doubts] == [True, False]
    assert "newer" in doubts[1]


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("file", sorted(CONFIGS.iterdir()), ids=lambda file: file.name)
def test_without_a_trainer_a_sound_configuration_is_clean(preflight, file):
    assert preflight(*(["--", *command_of(file)] if file.suffix == ".sh" else [file]))[1] == []


def test_prime_rl_is_compared_with_what_is_known(preflight):
    _, ((_, key, why, write),), (doubt,) = preflight(
        CONFIGS / "prime-rl-h100-7b-lora.toml", "inference.gpu_mem_utilization=0.4"
    )
    assert (key, write) == ("inference.gpu_mem_utilization", "inference.gpu_memory_utilization=0.4")
    assert "preflight's own list for prime-rl" in why
    assert "compared with" in doubt


@pytest.mark.parametrize(
    ("name", "known", "misspelt"),
    [
        ("gpu_mem_utilization", "gpu_memory_utilization", True),
        ("gpu_mem_util", "gpu_memory_utilization", True),
        ("maxpromptlength", "max_prompt_length", True),
        ("rolout", "rollout", True),
        ("ppo_mini_batch_size", "ppo_micro_batch_size", False),
        ("max_prompt_length", "max_completion_length", False),
        ("lora_r_b", "lora_r", False),
        ("val_files", "train_files", False),
        ("top_p", "top_k", False),
    ],
)
def test_what_counts_as_a_slip(name, known, misspelt):
    assert names._is_misspelling(name, known) is misspelt


def test_fields_and_texts_are_read_from_source(tmp_path):
    file = tmp_path / "config.py"
    file.write_text(
        textwrap.dedent(
            """
            class Base:
                lr: float = 1.0
            class Run(Base):
                mode: Literal["a", "b"] = "a"
                size: int = field(default=3, metadata={"choices": [1, 3]})
                lr: float = 2.0
                def __post_init__(self):
                    known = ["x", "y"]
                    if self.kind == "p" or self.kind in ("q", other):
                        raise ValueError("no")
            class Kind(str, Enum):
                ONE = "one"
            @register("two")
            def two(name="three"): ...
            """
        ),
        encoding="utf-8",
    )
    fields = fields_of("Run", classes_in([file]))
    assert {key: (one.default, one.choices) for key, one in fields.items()} == {
        "lr": (2.0, ()),
        "mode": ("a", ("a", "b")),
        "size": (3, ("1", "3")),
    }
    asked = ("known", "kind", "Kind", "register", "nothing")
    assert [texts_of(file, name) for name in asked] == [{"x", "y"}, {"p", "q"}, {"one"}, {"two"}, set()]
