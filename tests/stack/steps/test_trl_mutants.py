"""TRL's step must fail when it should: each mutant of it has one fault, caught by the message meant for it."""

from __future__ import annotations

import pytest

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.isolated(group="trl mutants", timeout=300),
    pytest.mark.needs("trl", "datasets", "vllm"),
]

TOLERANCE = 1e-5
STALE = "step 2: engine and trainer disagree, its weights are stale or incomplete"
LAYER = "model.layers.0.self_attn.o_proj.weight"


@pytest.fixture
def mutant(trl_step):
    """``mutant(message, alter, steps=1, mode="hf")``: expect that complaint of a run with the altered trainer."""
    from pytest_rlregress.fixtures.trl_record import check

    def mutant(message, alter=lambda trainer: None, steps=1, mode="hf", **overrides):
        run = trl_step.run(steps, mode, alter, **overrides)
        with pytest.raises(AssertionError, match=message):
            check(run.records, TOLERANCE)

    return mutant


def sending(send):
    def alter(trainer):
        from pytest_rlregress.fixtures.trl_on_cpu import send_by

        send_by(trainer, send)

    return alter


def without(*missing):
    """A sync that leaves names out: whole tensors, of vLLM's fused ones a missing part would be what memory held."""

    def send(llm, weights):
        from pytest_rlregress.remedies.rollout import reload_weights

        reload_weights(llm, ((name, tensor) for name, tensor in weights if name not in missing))

    return sending(send)


def with_batch(change):
    """An alteration of what TRL makes of its rollouts: ``change(batch)`` gives the entries that differ."""

    def alter(trainer):
        sound = trainer._generate_and_score_completions

        def faulty(inputs):
            batch = sound(inputs)
            return {**batch, **change(batch)}

        trainer._generate_and_score_completions = faulty

    return alter


def with_gradient(change):
    return lambda trainer: trainer.model.get_parameter(LAYER).register_hook(change)


@pytest.mark.parametrize("mode", ["hf", "colocate"])
def test_the_sound_step_passes(trl_step, mode):
    from pytest_rlregress.fixtures.trl_record import check

    check(trl_step.run(2, mode).records, TOLERANCE)


def test_no_sync(mutant):
    mutant(STALE, sending(lambda llm, weights: None), 2, "colocate")


def test_stale_head(mutant):
    def send(llm, weights):
        from pytest_rlregress.remedies.rollout import reload_by_worker

        reload_by_worker(llm, weights)  # named_parameters has a tied head under the embedding's name only

    mutant(STALE, sending(send), 2, "colocate")


def test_half_a_sync(mutant):
    rest = ["self_attn.o_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"]
    mutant(STALE, without(*(f"model.layers.1.{name}" for name in rest), "model.norm.weight"), 2, "colocate")


def test_one_tensor_missing_from_the_sync(mutant):
    mutant(STALE, without(LAYER), 2, "colocate")


def test_engine_at_another_temperature(mutant):
    def alter(trainer):
        trainer.vllm_generation.temperature = 0.9

    mutant("step 1: engine and trainer disagree, they differ before any update", alter, 1, "colocate")


def test_completions_cut_short(mutant):
    def alter(trainer):
        trainer.vllm_generation.max_completion_length = 8

    mutant("step 1: completion 0 has 8 tokens, asked for were 16", alter, 1, "colocate")


@pytest.mark.parametrize("shift", [-1, 1], ids=["without-the-last-token", "without-the-first-token"])
def test_mask_off_by_one(mutant, shift):
    def change(batch):
        mask = batch["completion_mask"].roll(shift, 1)
        mask[:, -1 if shift < 0 else 0] = 0
        return {"completion_mask": mask}

    mutant("step 1: the mask of a completion covers 15 tokens", with_batch(change))


def test_advantages_of_other_completions(mutant):
    mutant("step 1: the advantage of completion", with_batch(lambda batch: {"advantages": batch["advantages"].roll(1)}))


def test_no_advantages(mutant):
    mutant("step 1: the advantage of completion", with_batch(lambda batch: {"advantages": batch["advantages"] * 0}))


def test_advantages_normalised_over_the_batch(mutant):
    mutant("step 1: the advantage of completion", scale_rewards="batch")


def test_rewards_without_a_difference(mutant):
    def alter(trainer):
        trainer.reward_funcs[0] = lambda completions, **columns: [0.5] * len(completions)

    mutant("step 1: the rewards are equal in every group", alter)


def test_frozen_parameter(mutant):
    def alter(trainer):
        trainer.model.get_parameter(LAYER).requires_grad_(False)

    mutant(f"step 1: no finite gradient reached {LAYER}$", alter)


def test_gradient_that_is_not_a_number(mutant):
    mutant("step 1: no finite gradient reached", with_gradient(lambda gradient: gradient * float("nan")))


def test_gradient_lost_on_the_way(mutant):
    mutant(f"step 1: the update did not move {LAYER}$", with_gradient(lambda gradient: gradient * 0))
