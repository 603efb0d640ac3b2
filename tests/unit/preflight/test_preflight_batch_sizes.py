"""``rlregress preflight``: batches that verl and TRL can't cut evenly, and the number proposed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from installed import TESTS

from pytest_rlregress.commands.preflight.config import PlannedRun

GSPO, GRPO = TESTS / "configs" / "verl-h200-gspo-3b.yaml", TESTS / "configs" / "trl-h100-grpo-1.5b.yaml"
ACTOR, TRAIN, CARDS = "actor_rollout_ref.actor", "data.train_batch_size", "trainer.n_gpus_per_node"
MINI, MICRO = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
FIXED, N = f"{ACTOR}.use_dynamic_bsz=false", "actor_rollout_ref.rollout.n"
TENSOR = f"{ACTOR}.megatron.tensor_model_parallel_size"
LOG_PROB = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
REFERENCE, KL = LOG_PROB.replace("rollout.", "ref."), f"{ACTOR}.use_kl_loss"
SP = f"{ACTOR}.ulysses_sequence_parallel_size"


@pytest.fixture
def batches(preflight):
    """Run the command: (key, what to write) of each finding about batches, and the report."""

    def batches(file, *changes):
        _, report = preflight(file, "--hw=h200", *changes)
        found = [(one["key"], one["instead"]) for one in report["findings"] if one["failure"] == "batch-sizes"]
        return found, report

    return batches


def of_verl(train, mini, n, cards, micro=None, *more):
    fixed = [FIXED, f"{MICRO}={micro}"] if micro else [f"{ACTOR}.use_dynamic_bsz=true"]
    return GSPO, [f"{TRAIN}={train}", f"{MINI}={mini}", f"{N}={n}", f"{CARDS}={cards}", *fixed, *more]


def of_trl(batch, steps, processes, *more):
    sizes = [f"per_device_train_batch_size={batch}", f"gradient_accumulation_steps={steps}"]
    return GRPO, [*sizes, *([f"accelerate.num_processes={processes}"] if processes else []), *more]


G8 = "num_generations=8"
UNEVEN = [
    (*of_verl(256, 256, 5, 8, 9), MICRO, f"{MICRO}=8"),
    (*of_verl(256, 256, 5, 8, 512), MICRO, f"{MICRO}=160"),
    (*of_verl(8, 4, 2, 1, 16), MICRO, f"{MICRO}=8"),
    (*of_verl(8, 4, 1, 8, 1), MINI, f"{MINI}=8"),
    (*of_verl(64, 256, 4, 8, 4), MINI, f"{MINI}=64"),
    (*of_verl(60, 9, 4, 8), MINI, f"{MINI}=10"),
    (*of_verl(60, 60, 1, 8), MINI, f"{TRAIN}=64\n{MINI}=64"),
    (*of_verl(60, 60, 1, 8, 1), MINI, f"{TRAIN}=64\n{MINI}=64"),
    (*of_verl(60, 60, 1, 8, 3), MINI, f"{TRAIN}=64\n{MINI}=64\n{MICRO}=2"),
    (*of_verl(60, 64, 1, 8, 1), TRAIN, f"{TRAIN}=64"),
    (*of_verl(60, 30, 1, 8, 1), MINI, f"{TRAIN}=64\n{MINI}=32"),
    (*of_verl(100, 30, 2, 8, 1), MINI, f"{MINI}=20"),
    (*of_verl(48, 64, 1, 8, 1), MINI, f"{MINI}=48"),
    (*of_verl(64, 1, 1, 8), MINI, f"{MINI}=8"),
    (*of_verl(6, 4, 2, 8, 1), TRAIN, f"{TRAIN}=8"),
    (*of_verl(6, 4, 1, 4, 1, f"{SP}=2"), TRAIN, f"{TRAIN}=8"),
    (*of_verl(9, 4, 2, 4, 2, f"{ACTOR}.strategy=megatron", f"{TENSOR}=2"), TRAIN, f"{TRAIN}=10"),
    (*of_verl(64, 64, 1, 8, 32, f"{SP}=2"), MICRO, f"{MICRO}=16"),
    (*of_trl(4, 1, 1, G8), "gradient_accumulation_steps", "gradient_accumulation_steps=2"),
    (*of_trl(3, 4, 1, G8), "gradient_accumulation_steps", "gradient_accumulation_steps=8"),
    (*of_trl(1, 1, 4, G8, "steps_per_generation=3"), "steps_per_generation", "steps_per_generation=4"),
    (*of_trl(2, 1, 1, G8, "generation_batch_size=12"), "generation_batch_size", "generation_batch_size=8"),
    (*of_trl(4, 1, 4, G8, "generation_batch_size=24"), "generation_batch_size", "generation_batch_size=16"),
]
EVEN = [
    of_verl(256, 100, 4, 8),  # verl pads a step to whole mini batches
    of_verl(64, 256, 4, 8),
    of_verl(8, 4, 2, 6, 1, f"{SP}=4"),  # which is another error
    of_verl(256, 256, 5, 8, 8),
    of_verl(8, 4, 2, 1),
    of_verl(0, 4, 2, 1, 4),  # a trainer that fetches samples by its own count
    of_verl(8, 4, 1, 8, 1, f"{SP}=2"),
    of_verl(8, 4, 2, 8, 1, f"{CARDS}=8", f"{SP}=8"),
    of_trl(8, 1, 3, G8),
    of_trl(8, 1, None, G8),
    of_trl(4, 1, 4, G8),
    of_trl(2, 1, 1, G8, "generation_batch_size=16"),
]


@pytest.mark.parametrize(("file", "changes", "key", "instead"), UNEVEN)
def test_names_an_even_batch_size(batches, file, changes, key, instead):
    found, _ = batches(file, *changes)
    assert found[0] == (key, instead)
    found, report = batches(file, *changes, *instead.splitlines())
    assert (found, "batch-sizes" in report["checked"]) == ([], True)


NUMBERS = st.tuples(*(st.integers(1, most) for most in (300, 300, 16, 64)), st.none() | st.integers(1, 40))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NUMBERS, st.sampled_from([1, 2, 4]))
def test_a_proposal_passes_at_once_and_is_a_step_of_whole_mini_batches(batches, numbers, shared):
    file, changes = of_verl(*numbers, f"{SP}={shared}")
    found, _ = batches(file, *changes)
    if not found:
        return
    proposed = found[0][1].splitlines()
    assert batches(file, *changes, *proposed)[0] == []
    values = {key: int(value) for key, value in (line.split("=") for line in proposed)}
    train = values.get(TRAIN, numbers[0])
    assert train >= numbers[0]
    if MINI in values:
        assert train % values[MINI] == 0


@pytest.mark.parametrize(("file", "changes"), EVEN)
def test_accepts_even_batch_sizes(batches, file, changes):
    assert batches(file, *changes)[0] == []


def test_reads_the_critics_batch_sizes(batches):
    file, changes = of_verl(64, 64, 1, 8, 8, "critic.ppo_micro_batch_size_per_gpu=3")
    assert batches(file, *changes)[0] == []  # GSPO has no critic
    key = "critic.ppo_micro_batch_size_per_gpu"
    assert batches(file, *changes, "algorithm.adv_estimator=gae")[0] == [(key, f"{key}=2")]


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
@pytest.mark.parametrize(
    ("change", "proposed"),
    [
        (f"{KL}=false", {LOG_PROB: 10}),
        (f"{KL}=true", {LOG_PROB: 10, REFERENCE: 10}),
        ("algorithm.rollout_correction.bypass_mode=true", {}),
        (f"{TRAIN}=72", {}),  # verl pads it to two mini batches, 80 samples a GPU
        (f"{ACTOR}.use_dynamic_bsz=true", {}),
    ],
)
def test_reads_the_micro_batches_of_log_probabilities(batches, monkeypatch, change, proposed):
    monkeypatch.setattr(PlannedRun, "is_release", lambda run, package, specifier: True)
    file, changes = of_verl(64, 64, 5, 8, 8, f"{LOG_PROB}=16", f"{REFERENCE}=12", f"{KL}=false")
    found, _ = batches(file, *changes, change)
    assert found == [(key, f"{key}={number}") for key, number in proposed.items()]


@pytest.mark.parametrize(
    ("file", "change", "missing"),
    [
        (GSPO, f"{CARDS}=???", CARDS),
        (GRPO, "num_generations=7", "accelerate.num_processes"),
        (GRPO, "per_device_train_batch_size=???", "per_device_train_batch_size"),
    ],
)
def test_asks_for_a_missing_batch_size(batches, file, change, missing):
    _, report = batches(file, change)
    (doubt,) = [one for one in report["not_checked"] if one["failure"] == "batch-sizes"]
    assert missing in doubt["missing"]


def test_memory_advice_is_an_even_batch_size(batches):
    """The largest micro batch and number of cards that fit would be refused."""
    model = "actor_rollout_ref.model"
    file, changes = of_verl(256, 256, 5, 8, 160, f"{model}.path=Qwen/Qwen2.5-7B", f"{model}.lora_rank=8", "--memory=48")
    _, report = batches(file, *changes, "data.max_response_length=4096", "actor_rollout_ref.rollout.max_model_len=8192")
    (finding,) = [one for one in report["findings"] if one["failure"] == "trainer-engine-oom"]
    micro = int(finding["instead"].split()[0].partition("=")[2])
    assert finding["key"] == MICRO
    assert micro > 1
    assert 160 % micro == 0
