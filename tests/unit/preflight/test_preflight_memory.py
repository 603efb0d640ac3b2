"""``rlregress preflight``: what it says of memory, for models, cards and ways to train."""

from __future__ import annotations

import json

import pytest
from installed import TESTS

from pytest_rlregress.cli import main
from pytest_rlregress.commands.preflight.training import model_of

CONFIGS = TESTS / "configs"
V5, GSPO = CONFIGS / "prime-rl-h100-7b-lora.toml", CONFIGS / "verl-h200-gspo-3b.yaml"
NO_AC, SHARE = "~trainer.model.ac", "inference.gpu_memory_utilization"
OWN_CARD = "trainer_gpu_ids=[1]"
MODEL = "actor_rollout_ref.model"
LORA, AC = f"{MODEL}.lora_rank=8", f"{MODEL}.enable_gradient_checkpointing"
TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
VERL_SHARE, AWAKE = "actor_rollout_ref.rollout.gpu_memory_utilization", "actor_rollout_ref.rollout.free_cache_engine=no"


@pytest.fixture
def findings(preflight):
    """Run the command: (failure, key, what to write) of each finding."""

    def findings(*arguments):
        return [(one["failure"], one["key"], one["instead"]) for one in preflight(*arguments)[1]["findings"]]

    return findings


# A change to a working run, and the finding: its failure, its key, what to write.
TOO_MUCH = [
    # What failed before v5 worked, and other ways to ask too much of a card that trainer and engine share.
    (V5, "h100", [NO_AC, f"{SHARE}=0.45"], "trainer-engine-oom", "trainer.model.ac", "ac = { freq = 1 }"),
    (V5, "h100", [NO_AC], "trainer-engine-oom", "trainer.model.ac", "ac = { freq = 1 }"),
    (V5, "h100", [f"~{SHARE}"], "gpu-memory-utilization", SHARE, f"{SHARE}=0.5"),
    (V5, "h100", ["trainer.model.seq_len=8192"], "trainer-engine-oom", SHARE, "gpu_memory_utilization = 0.42"),
    (V5, "h100", ["~trainer.model.lora"], "trainer-engine-oom", "trainer.model.lora", "lora = { rank = 8"),
    (V5, "h100", ["model.name=Qwen/Qwen2.5-14B"], "gpu-memory-utilization", SHARE, "a smaller model"),
    (V5, "a6000", [], "gpu-memory-utilization", SHARE, "a smaller model"),
    # A card of its own for the trainer.
    (V5, "a6000", [OWN_CARD, "model.name=me/20b"], "trainer-engine-oom", "trainer_gpu_ids", "2 cards"),
    # verl, whose engine by default sleeps while the trainer works.
    (GSPO, "h200", [f"{VERL_SHARE}=0.95"], "gpu-memory-utilization", VERL_SHARE, f"{VERL_SHARE}=0.7"),
    (GSPO, "h200", [f"{VERL_SHARE}=0.6", AWAKE], "gpu-memory-utilization", VERL_SHARE, f"{VERL_SHARE}=0.5"),
    (GSPO, "h200", [f"{MODEL}.path=Qwen/Qwen2.5-14B"], "trainer-engine-oom", f"{MODEL}.lora_rank", "lora_rank: 8"),
    (GSPO, "l4", [LORA, f"{TOKENS}=16384"], "trainer-engine-oom", TOKENS, f"{TOKENS}=12288"),
    (GSPO, "a6000", [LORA, f"{TOKENS}=8192", f"{AC}=false"], "trainer-engine-oom", AC, f"{AC}=true"),
]
BY_SIZE = [  # changes, what is short, what is enough, what is not said
    ([f"{MODEL}.path=Qwen/Qwen2.5-7B"], "2.9 GiB too much", "lora_rank: 8\n# or: n_gpus_per_node: 2", "checkpointing"),
    ([f"{MODEL}.path=Qwen/Qwen2.5-32B"], "471 GiB too much", "lora_rank: 8", "checkpointing"),
    ([f"{MODEL}.path=Qwen/Qwen2.5-72B"], "1215 GiB too much", "nnodes: 2 # with 8 cards each", "checkpointing"),
    ([f"{MODEL}.path=Qwen/Qwen2.5-72B"], "1215 GiB too much", "a smaller model, of at most 3B", "lora_rank"),
    ([LORA, f"{AC}=no", f"{TOKENS}=30000"], "too much", f"{AC}=true", "nnodes"),
    ([f"{VERL_SHARE}=0.5", AWAKE, f"{TOKENS}=70000"], "15 GiB too much", f"{VERL_SHARE}=0.3948", "smaller model"),
]


@pytest.mark.parametrize(("changes", "short", "enough", "not_said"), BY_SIZE)
def test_advice_covers_the_shortage(capsys, changes, short, enough, not_said):
    main(["preflight", str(GSPO), "--hw=h200", *changes])
    printed = " ".join(capsys.readouterr().out.split())
    instead = printed.partition(" instead ")[2]
    assert short in printed
    assert " ".join(enough.split()) in instead
    assert not_said not in instead


def test_advised_number_of_nodes_is_enough(findings):
    ((_, _, advised),) = findings(GSPO, f"{MODEL}.path=Qwen/Qwen2.5-72B", "--hw=h200")
    cards = int(advised.split()[1]) * 8
    for count, fits in ((cards, True), (cards // 2, False)):
        sizes = ["data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=64"]
        nodes = [f"trainer.n_gpus_per_node={count}", f"{MODEL}.path=Qwen/Qwen2.5-72B", *sizes]
        assert (findings(GSPO, *nodes, "--hw=h200") == []) is fits


ENOUGH = [
    (V5, "h100", [f"{SHARE}=0.45"]),
    (V5, "h100", [f"{SHARE}=0.9", OWN_CARD]),
    (V5, "h100", [f"{SHARE}=0.9", "model.name=me/nameless", OWN_CARD]),
    (GSPO, "h200", [f"{VERL_SHARE}=0.6"]),
    (GSPO, "h200", [f"{VERL_SHARE}=0.9", "actor_rollout_ref.hybrid_engine=False"]),
    (GSPO, "h100", [f"{MODEL}.path=Qwen/Qwen2.5-14B", "trainer.n_gpus_per_node=8"]),
    (GSPO, "a100", [f"{TOKENS}=16384", "--memory=80"]),
]


@pytest.mark.parametrize(("file", "hw", "change", "failure", "key", "instead"), TOO_MUCH)
def test_finds_settings_that_need_too_much_memory(findings, file, hw, change, failure, key, instead):
    ((found, of, write),) = findings(file, *change, f"--hw={hw}")
    assert (found, of) == (failure, key)
    assert instead in write


@pytest.mark.parametrize(("file", "hw", "change"), ENOUGH)
def test_accepts_settings_that_fit_into_memory(findings, file, hw, change):
    assert findings(file, *change, f"--hw={hw}") == []


def test_uses_the_memory_of_the_real_card(findings):
    assert findings(GSPO, f"{TOKENS}=16384", "--hw=a100")  # the smaller of the two there are
    assert not findings(GSPO, f"{TOKENS}=16384", "--hw=a100", "--memory=80")


def test_asks_for_a_size_that_is_not_in_the_model_name(preflight, capsys):
    nameless = [str(GSPO), f"{MODEL}.path=me/nameless", "--hw=h200"]
    code, report = preflight(*nameless)
    assert (code, report["result"], report["missing"], report["findings"]) == (3, "partial", ["--parameters"], [])
    assert preflight(*nameless, "--parameters=3B")[0] == 0
    assert preflight(*nameless, "--parameters=14b")[0] == 1
    assert main(["preflight", *nameless]) == 3
    printed = capsys.readouterr().out
    assert "nothing found, checked in part" in printed
    assert "to check these too, give: --parameters" in printed
    with pytest.raises(SystemExit):
        preflight(*nameless, "--parameters=large")
    assert "write 7B, 0.5B or 500M" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("trainer.n_gpus_per_node=${oc.env:CARDS_OF_NOBODY}", "trainer.n_gpus_per_node"),
        ("data.max_response_length=???", "data.max_response_length"),
        ("actor_rollout_ref.actor.use_dynamic_bsz=no", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        ("trainer.n_gpus_per_node=0.5", "trainer.n_gpus_per_node"),
        ("trainer.n_gpus_per_node=-8", "trainer.n_gpus_per_node"),
        (f"{VERL_SHARE}=???", VERL_SHARE),
        ("--hw=cpu", "--hw"),
    ],
)
def test_names_a_missing_number(preflight, change, missing):
    changes = [change, "~actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] if "dynamic" in change else [change]
    _, report = preflight(GSPO, "--hw=h200", *changes)
    assert missing in report["missing"]
    assert any(missing in one["missing"] for one in report["not_checked"])


@pytest.mark.parametrize("change", [f"{MODEL}.lora_rank=.inf", "data.max_response_length=.nan"])
def test_ignores_values_that_are_not_finite(findings, change):
    assert findings(GSPO, change, "--hw=h200") == []


@pytest.mark.parametrize("change", ["model_engine=megatron", "actor_rollout_ref.actor.megatron.use_mbridge=yes"])
def test_megatrons_memory_is_not_predicted(findings, change):
    assert findings(GSPO, f"{MODEL}.path=Qwen/Qwen2.5-72B", "--hw=h200")
    assert not findings(GSPO, f"{MODEL}.path=Qwen/Qwen2.5-72B", "--hw=h200", change)


def test_missing_setting_is_reported_at_its_section(tmp_path, capsys):
    text = V5.read_text(encoding="utf-8")
    file = tmp_path / "v1.toml"
    file.write_text(text.replace("[trainer.model.ac]\nfreq = 1\n", ""), encoding="utf-8")
    main(["preflight", str(file), "--hw=h100"])
    line = text[: text.index("[trainer.model]")].count("\n") + 1
    assert f"{file}:{line}: trainer.model.ac: trainer-engine-oom" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("meta-llama/Llama-3.1-8B", 8_000_000_000),
        ("openai/gpt-oss-20b", 20_000_000_000),
        ("Qwen/Qwen3-30B-A3B", 30_000_000_000),
        ("/models/qwen2.5-0.5b", 494_032_768),
        ("mistralai/Mixtral-8x7B", None),
        ("/data/1b_runs/Qwen2.5-7B/", 7_615_616_512),
        ("/scratch/70b/ckpt/Qwen3-4B", 4_000_000_000),
        ("/data/1b_runs/actor", None),
        ("/hub/models--Qwen--Qwen2.5-7B/snapshots/7b1c0de", 7_615_616_512),
        ("me/my-model-4bit", None),
    ],
)
def test_reads_the_size_from_the_model_name(name, parameters):
    model = model_of(name)
    assert (model and model.parameters) == parameters


def test_mixture_of_experts_has_the_width_of_its_active_parameters():
    assert model_of("Qwen/Qwen3-30B-A3B").hidden_size == model_of("Qwen/Qwen2.5-3B").hidden_size


def test_reads_the_size_of_a_local_model_from_its_config(tmp_path):
    config = {
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    model = model_of(str(tmp_path))
    assert model.parameters == pytest.approx(7_615_616_512, rel=1e-3)  # Qwen2.5-7B, biases and norms not counted
    assert (model.num_hidden_layers, model.vocab_size) == (28, 152064)
    for odd in (json.dumps({**config, "num_experts": 8}), "{}", "{"):
        file.write_text(odd, encoding="utf-8")
        assert model_of(str(tmp_path)) is None
