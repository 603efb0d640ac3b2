"""Broken remedies of pad-is-eos, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant
from pytest_rlregress.remedies.tokens import padded_batch


@broken(only="test_trained_to_stop")
def labels_by_id(rows, pad_token_id):
    batch = padded_batch(rows, pad_token_id)
    batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] == pad_token_id, -100)
    return batch


@broken(only="test_any_rows")
def attention_by_id(rows, pad_token_id):
    batch = padded_batch(rows, pad_token_id)
    return {**batch, "attention_mask": (batch["input_ids"] != pad_token_id).long()}


@mutant("absent")
def collator_masks_by_length(monkeypatch):
    from transformers import DataCollatorForLanguageModeling

    def collated(self, features):
        return padded_batch([feature["input_ids"] for feature in features], self.tokenizer.pad_token_id)

    monkeypatch.setattr(DataCollatorForLanguageModeling, "__call__", collated)


@mutant("changed", only="test_end_of_turn")
def collator_fails_otherwise(monkeypatch):
    from transformers import DataCollatorForLanguageModeling

    monkeypatch.setattr(DataCollatorForLanguageModeling, "__call__", fails)
