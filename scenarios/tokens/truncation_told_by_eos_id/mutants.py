"""Broken remedies of truncation-told-by-eos-id, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant


@broken(only="test_cut_is")
def told_by_one_id(completion_ids, finish_reasons, stop_ids):
    return [not ids or ids[-1] not in (stop_ids or [2])[:1] for ids in completion_ids]


@broken(only="test_each_way")
def told_by_the_last_id(completion_ids, finish_reasons, stop_ids):
    return [not ids or ids[-1] not in stop_ids for ids in completion_ids]


@mutant("absent")
def trainer_knows_every_end(monkeypatch):
    """As if the trainer took over what the request added."""
    from pytest_rlregress.scenarios.tokens import grpo
    from pytest_rlregress.scenarios.tokens.truncation_told_by_eos_id import test_truncation_told_by_eos_id as scenario

    trainer = grpo.trainer

    def told(directory, tokenizer, *arguments):
        made = trainer(directory, tokenizer, *arguments)
        made.eos_token_ids = tokenizer.convert_tokens_to_ids(scenario.ENDS)
        return made

    monkeypatch.setattr(grpo, "trainer", told)


@mutant("changed", only="test_grpo_trainer")
def trainer_fails_otherwise(monkeypatch):
    from trl import GRPOTrainer

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", fails)
