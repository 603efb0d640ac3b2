"""TRL's step must fail when it should: each alteration of its trainer is caught by the property meant for it."""

from __future__ import annotations

import itertools
import types

import pytest
from altered_steps import assert_red

from pytest_rlregress.fixtures.step_record import check, check_resumed
from pytest_rlregress.fixtures.trl_on_cpu import send_by
from pytest_rlregress.remedies.rollout import reload_by_worker, reload_weights

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.isolated(group="trl mutants", timeout=300),
    pytest.mark.needs("trl", "datasets", "vllm"),
]

TOLERANCE = 1e-5
LAYER = "model.layers.0.self_attn.o_proj.weight"
ACCUMULATED = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}


# -- alterations: each takes a trainer and changes one thing ----------------------------------------------------------


def of_method(name, change):
    """``change(trainer, sound, *arguments)`` in place of one of the trainer's methods."""

    def alter(trainer):
        sound = getattr(trainer, name)
        setattr(trainer, name, lambda *arguments, **options: change(trainer, sound, *arguments, **options))

    return alter


def of_loss(change):
    return of_method("compute_loss", lambda trainer, sound, *rest, **options: change(sound(*rest, **options)))


def of_loss_inputs(change):
    """A loss that is given something else than what TRL made of its rollouts."""
    return of_method(
        "compute_loss",
        lambda trainer, sound, model, inputs, *rest, **options: sound(
            model, {**inputs, **change(inputs)}, *rest, **options
        ),
    )


def of_batch(change):
    """Something else than what TRL makes of its rollouts."""

    def changed(trainer, sound, inputs):
        batch = sound(inputs)
        return {**batch, **change(batch)}

    return of_method("_generate_and_score_completions", changed)


def while_the_loss_is_computed(**attributes):
    def computed(trainer, sound, *arguments, **options):
        kept = {name: getattr(trainer, name) for name in attributes}
        vars(trainer).update(attributes)
        try:
            return sound(*arguments, **options)
        finally:
            vars(trainer).update(kept)

    return of_method("compute_loss", computed)


def of_gradient(change):
    return lambda trainer: trainer.model.get_parameter(LAYER).register_hook(change)


def of_generation(**attributes):
    return lambda trainer: vars(trainer.vllm_generation).update(attributes)


def of_names(keep):
    """A sync that leaves whole tensors out: of vLLM's fused ones a missing part would be what memory held."""

    def alter(trainer):
        generation = trainer.vllm_generation
        sound = generation._iter_named_params
        generation._iter_named_params = lambda: (pair for pair in sound() if keep(pair[0]))

    return alter


def first_sync_only(trainer):
    generation = trainer.vllm_generation
    syncs = iter([generation.sync_weights])
    generation.sync_weights = lambda: next(syncs, lambda: None)()


def stale_head(trainer):
    send_by(trainer, reload_by_worker)  # TRL names a tied head by the embedding only


def stale_cache(trainer):
    trainer.vllm_generation.llm.llm_engine.reset_prefix_cache = lambda *_, **__: True
    send_by(trainer, reload_weights)


def adapters_not_merged(trainer):
    trainer.model.merge_adapter = trainer.model.unmerge_adapter = lambda: None


def every_second_step_skipped(trainer):
    create_optimizer = trainer.create_optimizer

    def create(*arguments):
        optimizer = create_optimizer(*arguments)
        step, numbers = optimizer.step, itertools.count(1)
        optimizer.step = types.MethodType(lambda self, *a, **o: step(*a, **o) if next(numbers) % 2 else None, optimizer)
        return optimizer

    trainer.create_optimizer = create


def dropout_in_the_second_pass(trainer):
    calls, sound = itertools.count(), trainer.compute_loss

    def compute_loss(*arguments, **options):
        dropout = 0.1 if next(calls) else 0.0
        for module in trainer.model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = dropout
        return sound(*arguments, **options)

    trainer.compute_loss = compute_loss


def metric_gone(trainer):
    from pytest_rlregress.fixtures.trl_record import AGREEMENT

    def log(trainer, sound, *arguments, **options):
        for name in ("mean", "max"):
            trainer._metrics["train"].pop(f"{AGREEMENT}/{name}", None)
        return sound(*arguments, **options)

    of_method("log", log)(trainer)


def no_answer_turn(trainer):
    tokenizer = trainer.processing_class
    sound = tokenizer.apply_chat_template
    tokenizer.apply_chat_template = lambda *arguments, **options: sound(
        *arguments, **{**options, "add_generation_prompt": False}
    )


def equal_rewards(trainer):
    trainer.reward_funcs[0] = lambda completions, **columns: [0.5] * len(completions)


def without_the_layer(trainer):
    trainer.model.get_parameter(LAYER).requires_grad_(False)


def other_answers(trainer, sound, inputs, *arguments):
    answers = [row["answer"] for row in inputs]
    return sound([{**row, "answer": one} for row, one in zip(inputs, answers[::-1], strict=True)], *arguments)


def shifted_logprobs(trainer, sound, *arguments, **options):
    logprobs, *rest = sound(*arguments, **options)
    return logprobs.roll(1, 1), *rest


def shifted_mask(shift):
    def change(batch):
        mask = batch["completion_mask"].roll(shift, 1)
        mask[:, -1 if shift < 0 else 0] = 0
        return {"completion_mask": mask}

    return of_batch(change)


def half_of_each_group(batch):
    return {name: tensor.unflatten(0, (-1, 8))[:, :4].flatten(0, 1) for name, tensor in batch.items() if tensor.ndim}


def advantages(change):
    return of_batch(lambda batch: {"advantages": change(batch["advantages"])})


def prompts_of_others(batch):
    return {name: batch[name].roll(8, 0) for name in ("prompt_ids", "prompt_mask")}


def all_of_the_mask(batch):
    return {"completion_mask": batch["completion_mask"] * 0 + 1}


def tokens_of_the_micro_batch(inputs):
    return {"num_items_in_batch": inputs["completion_mask"].sum()}


def centred_on_half(advantages):
    halves = advantages.view(-1, 4)
    return (halves - halves.mean(1, keepdim=True)).flatten()


def twice(name):
    return lambda batch: {name: batch[name] * 2}


TWO = {"steps": 2}
ENGINE = {"mode": "colocate"}
SYNCED = ENGINE | TWO
CLOSED_FORM = "loss|gradient norm: the closed form makes"
DIFFER = "agreement: they differ before any update"
ALTERATIONS = {
    # name: (property that turns red in the last step, alteration, what the run is given)
    "sign": ("sign", of_loss(lambda loss: -loss), {}),
    "scale": (CLOSED_FORM, of_loss(lambda loss: loss * 32), {}),
    "half the loss": (CLOSED_FORM, of_loss(lambda loss: loss / 2), {}),
    "wrong divisor": (CLOSED_FORM, of_batch(twice("num_items_in_batch")), {}),
    "divisor of a micro batch": (CLOSED_FORM, of_loss_inputs(tokens_of_the_micro_batch), ACCUMULATED),
    "another prompt": ("prompts", of_batch(prompts_of_others), {}),
    "another prompt inside the loss": (CLOSED_FORM, of_loss_inputs(prompts_of_others), {}),
    "no answer turn": ("prompts", no_answer_turn, {}),
    "reward of another answer": ("rewards", of_method("_calculate_rewards", other_answers), {}),
    "equal rewards": ("rewards", equal_rewards, {}),
    "padding trained on": ("mask: covers 16 tokens", of_batch(all_of_the_mask), TWO),
    "mask ignored in the loss": (CLOSED_FORM, of_loss_inputs(all_of_the_mask), TWO),
    "mask without the last token": ("mask: covers 15 tokens", shifted_mask(-1), {}),
    "mask without the first token": ("mask: covers 15 tokens", shifted_mask(1), {}),
    "half of each group": (
        "mask: 16 completions were trained on, 32 were sampled",
        of_method("_generate_and_score_completions", lambda trainer, sound, inputs: half_of_each_group(sound(inputs))),
        {"loss_type": "grpo"},
    ),
    "advantages permuted in a group": (
        "advantages",
        advantages(lambda all_: all_.view(-1, 8).roll(1, 1).flatten()),
        {},
    ),
    "advantages of the next group": ("advantages", advantages(lambda all_: all_.roll(8)), {}),
    "baseline of half a group": ("advantages", advantages(centred_on_half), {}),
    "not centred": ("advantages", advantages(lambda all_: all_ + 0.5), {}),
    "no advantages": ("advantages", advantages(lambda all_: all_ * 0), {}),
    "not divided by the deviation": ("advantages", None, {"scale_rewards": "none"}),
    "deviation of the batch": ("advantages", None, {"scale_rewards": "batch"}),
    "log-probabilities shifted by one": (
        DIFFER,
        of_method("_get_per_token_logps_and_entropies", shifted_logprobs),
        ENGINE,
    ),
    "engine at another temperature": (DIFFER, of_generation(temperature=0.9), ENGINE),
    "completions cut short": ("completions: has 8 tokens", of_generation(max_completion_length=8), ENGINE),
    "correction twice": (CLOSED_FORM, of_batch(twice("importance_sampling_ratio")), ENGINE),
    "metric gone": ("agreement: neither seen nor declared not seen", metric_gone, ENGINE),
    "metric switched off": (
        "agreement: neither seen nor declared not seen",
        None,
        ENGINE | {"vllm_importance_sampling_correction": False},
    ),
    "no sync": ("sync", of_generation(sync_weights=lambda: None), SYNCED),
    "sync of the first step only": ("sync", first_sync_only, SYNCED),
    "half a sync": ("sync", of_names(lambda name: "layers.1." not in name), SYNCED),
    "one tensor missing": (f"sync: the engine {LAYER}: its", of_names(lambda name: name != LAYER), SYNCED),
    "stale head": ("sync", stale_head, SYNCED),
    "stale cache": ("agreement: its weights are stale", stale_cache, SYNCED | {"repeat_long_prompts": True}),
    "adapters not merged": ("sync", adapters_not_merged, SYNCED | {"lora_rank": 8}),
    "frozen parameter": (f"gradients: {LAYER}$", without_the_layer, {}),
    "gradient not a number": ("gradients", of_gradient(lambda gradient: gradient * float("nan")), {}),
    "gradient lost on the way": (f"update: {LAYER}$", of_gradient(lambda gradient: gradient * 0), {}),
    "learning rate 0": ("update: did not move", None, {"learning_rate": 0.0}),
    "every second step skipped": ("update: did not move", every_second_step_skipped, TWO),
    "dropout in the second pass": (CLOSED_FORM, dropout_in_the_second_pass, TWO | {"num_iterations": 2}),
    "nothing clipped": (
        CLOSED_FORM,
        while_the_loss_is_computed(epsilon_low=9.0, epsilon_high=9.0),
        TWO | {"num_iterations": 2},
    ),
    "no KL in the loss": (CLOSED_FORM, while_the_loss_is_computed(beta=0.0), TWO | {"beta": 0.5}),
}


@pytest.mark.parametrize(("wanted", "alter", "given"), ALTERATIONS.values(), ids=ALTERATIONS)
def test_alteration_is_noticed(trl_step, wanted, alter, given):
    given = {"steps": 1, "mode": "hf", **given}
    run = trl_step.run(alter=alter, **given)
    assert len(run.records) == given["steps"]
    assert_red(run.records, wanted, TOLERANCE, "max")


@pytest.mark.parametrize("mode", ["hf", "colocate"])
def test_sound_step_passes(trl_step, mode):
    check(trl_step.run(2, mode).records, 2, TOLERANCE, "max")


def test_only_the_tokenizers_token_may_end_a_completion(trl_step):
    def end_as_older_releases_do(trainer):
        only = trainer.processing_class.eos_token_id
        trainer.eos_token_ids, trainer.generation_config.eos_token_id = [only], only

    records = trl_step.run(3, "hf", end_as_older_releases_do).records
    assert any(0 in ids[:-1] for record in records for ids in record.completions), "none goes on after another token"
    check(records, 3, TOLERANCE, "max")


def test_old_weights_after_resume_are_noticed(trl_step):
    def without_weights(trainer):
        trainer._load_from_checkpoint = lambda *arguments, **options: None

    saved = {"save_strategy": "steps", "save_steps": 1}
    through = trl_step.run(2, "hf", **saved)
    resumed = trl_step.run(2, "hf", without_weights, resume="checkpoint-1", **saved)
    with pytest.raises(AssertionError, match="resumed, step 2 is another one: completions is"):
        check_resumed(resumed.records[0], through.records[1])
