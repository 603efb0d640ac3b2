"""What preflight finds of a run that is spread over cards, and that what it proposes passes preflight itself."""

from __future__ import annotations

import pytest
from installed import TESTS

from pytest_rlregress.commands.preflight import command
from pytest_rlregress.commands.preflight.config import PlannedRun
from pytest_rlregress.commands.preflight.names import unknown_key
from pytest_rlregress.commands.preflight.parallel import count_heads
from pytest_rlregress.commands.preflight.trainers import Schema

CONFIGS = TESTS / "configs"
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
TP = f"{ROLLOUT}.tensor_model_parallel_size"
BASE = {
    "data.train_batch_size": 64,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-0.5B-Instruct",
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.gpu_memory_utilization": 0.4,
    "trainer.n_gpus_per_node": 8,
    TP: 1,
}


@pytest.fixture
def check(preflight):
    """``check(changes, …)``: the findings about batches of verl's command with changed values."""

    def check(*overrides, failure="batch-sizes", hw="h100", **changed):
        values = {**BASE, **{key.replace("__", "."): value for key, value in changed.items()}}
        words = [f"{key}={value}" for key, value in values.items() if value is not None]
        _, report = preflight(
            f"--hw={hw}", "--memory=80", "--", "python3", "-m", "verl.trainer.main_ppo", *words, *overrides
        )
        return [(one["key"], one["instead"], one["why"]) for one in report["findings"] if one["failure"] == failure]

    return check


@pytest.mark.parametrize(
    ("path", "heads"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 28),
        ("Qwen/Qwen2.5-7B-Instruct", 28),
        ("Qwen/Qwen2.5-0.5B-Instruct", 14),
        ("Qwen/Qwen2.5-Math-1.5B", 12),
        ("Qwen/Qwen3-8B", 32),
        ("meta-llama/Llama-3.1-8B-Instruct", 32),
        ("Qwen/Qwen3-30B-A3B", None),
        ("someone/else-9B", None),
        (None, None),
    ],
)
def test_knows_the_heads_of_models(path, heads):
    assert count_heads(path) == heads


def test_reads_the_heads_of_a_configuration(tmp_path):
    (tmp_path / "config.json").write_text('{"text_config": {"num_attention_heads": 6}}')
    assert count_heads(str(tmp_path)) == 6
    (tmp_path / "config.json").write_text("[")
    assert count_heads(str(tmp_path)) is None


def test_heads_must_spread_over_the_engines_cards(check):
    distilled = {"actor_rollout_ref__model__path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"}
    [(key, instead, why)] = check(f"{TP}=8", **distilled)
    assert (key, instead) == (TP, f"{TP}=4")
    assert "28 attention heads" in why
    assert "1, 2, 4, 7 can" in why
    assert check(f"{TP}=4", **distilled) == []


def test_heads_must_spread_over_the_cards_of_a_sequence(check):
    key = f"{ACTOR}.ulysses_sequence_parallel_size"
    [(found, instead, _)] = check(f"{key}=4")
    assert (found, instead) == (key, f"{key}=2")


@pytest.mark.parametrize(("cards", "spread", "proposed"), [(1, None, 1), (6, 4, 2), (8, 3, 2), (8, 2, None)])
def test_cards_are_whole_engines(check, cards, spread, proposed):
    """Where it isn't given, verl's default is 2."""
    found = check(
        **{TP.replace(".", "__"): spread, "trainer__n_gpus_per_node": cards}, actor_rollout_ref__rollout__n=12
    )
    told = [(key, instead) for key, instead, why in found if key == TP and "multiple" in why]
    assert told == ([(TP, f"{TP}={proposed}")] if proposed else [])
    assert ("by default" in str(found)) == (spread is None)


def test_a_row_fits_the_budget_of_dynamic_batches(check):
    dynamic, key = f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu"
    found = check(dynamic, f"{key}=1000")
    assert (key, f"{key}=1024") in [(one, instead) for one, instead, _ in found]
    assert check(dynamic, f"{key}=1024") == []
    spread = f"{ACTOR}.ulysses_sequence_parallel_size=2"
    assert check(dynamic, spread, f"{key}=512") == []


def test_moments_count_beside_the_cache_of_an_engine_that_wakes(check):
    """Qwen3-8B over 4 cards: weights of 7.6 GiB, and from the second step on 15.3 of moments."""
    share = f"{ROLLOUT}.gpu_memory_utilization"
    large = {"actor_rollout_ref__model__path": "Qwen/Qwen3-8B", "trainer__n_gpus_per_node": 4}
    failure = "gpu-memory-utilization"
    [(key, instead, why)] = check(f"{share}=0.9", failure=failure, **large)
    assert key == share
    assert "Adam's moments" in why
    assert check(instead, failure=failure, **large) == []
    assert check(f"{share}=0.6", failure=failure, **large) == []
    offloaded = f"{ACTOR}.fsdp_config.optimizer_offload=true"
    assert check(f"{share}=0.9", offloaded, failure=failure, **large) == []


PROPOSALS = [
    ({}, [f"{TP}=3"]),
    ({"trainer__n_gpus_per_node": 1}, [f"{TP}=2"]),
    ({}, [f"{ACTOR}.ppo_mini_batch_size=31"]),
    ({}, [f"{ACTOR}.ppo_micro_batch_size_per_gpu=5"]),
    (
        {"actor_rollout_ref__model__path": "Qwen/Qwen3-8B", "trainer__n_gpus_per_node": 4},
        [f"{ROLLOUT}.gpu_memory_utilization=0.95"],
    ),
    ({}, [f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=64"]),
    ({}, [f"{ROLLOUT}.max_model_len=600"]),
]


@pytest.mark.parametrize(("changed", "overrides"), PROPOSALS, ids=lambda one: str(one)[-60:])
def test_what_is_proposed_passes_preflight(preflight, changed, overrides):
    values = {**BASE, **{key.replace("__", "."): value for key, value in changed.items()}}
    words = [f"{key}={value}" for key, value in values.items()]

    def find(*more):
        command = ["--", "python3", "-m", "verl.trainer.main_ppo", *words, *overrides, *more]
        return preflight("--hw=h100", "--memory=80", *command)[1]["findings"]

    first = find()
    assert first
    proposed: list[str] = []
    for _ in range(3):  # what one proposal changes another check may look at
        left = find(*proposed)
        proposed += [line for one in left for line in one["instead"].splitlines() if not line.startswith("#")]
    assert [one["failure"] for one in find(*proposed)] == []
    assert all(" " not in line.partition("#")[0].strip() for line in proposed)  # an argument, and nothing else


def make_run(key, value, sign=""):
    run = command.read_override(f"{sign}{key}={value}")
    run.trainer, run.composed = "verl", {"refused": [key]}
    table = key.rpartition(".")[0]
    fields = {table: frozenset({"limit_images", "n"})}
    run.schema = Schema(
        "verl 0.9.1",
        True,
        frozenset({"actor_rollout_ref", table, f"{table}.n"}),
        frozenset({"actor_rollout_ref", table}),
        fields,
    )
    return run


def test_a_field_that_the_yaml_lacks_takes_a_plus_sign():
    key = f"{ROLLOUT}.limit_images"
    [advice] = unknown_key(make_run(key, 4))
    assert (advice.key, advice.instead) == (key, f"+{key}=4")
    assert "Hydra refuses" in advice.why
    assert list(unknown_key(make_run(key, 4, "+"))) == []


@pytest.mark.parametrize(
    ("known", "instead"),
    [(["model", "processing_class"], "processing_class=tok"), (["model"], "# leave tokenizer out")],
)
def test_an_argument_that_the_trainer_no_longer_takes(known, instead):
    told = {"class": "SFTTrainer", "known": known, "refused": {"tokenizer": "tok"}}
    run = PlannedRun("trl", {"output_dir": "x"}, composed={"arguments": told}, schema=Schema("trl 1.16.0", True))
    run.schema = Schema("trl 1.16.0", True, frozenset({"output_dir"}))
    [advice] = [one for one in unknown_key(run) if one.key == "tokenizer"]
    assert advice.instead == instead
    assert "SFTTrainer of trl 1.16.0 takes no argument tokenizer" in advice.why


def test_zero_without_its_stage_is_not_checked(preflight):
    launched = ["accelerate.num_processes=8", "accelerate.distributed_type=DEEPSPEED", "use_peft=false"]
    code, report = preflight(CONFIGS / "trl-h100-grpo-1.5b.yaml", "--hw=h100", *launched)
    assert "trainer-engine-oom" not in [one["failure"] for one in report["findings"]]
    assert "accelerate.deepspeed_config.zero_stage" in report["missing"]
    assert code == 3
    _, report = preflight(
        CONFIGS / "trl-h100-grpo-1.5b.yaml", "--hw=h100", "accelerate.num_processes=8", "use_peft=false"
    )
    assert [key for key in report["missing"] if key.startswith("accelerate")] == ["accelerate.distributed_type"]
