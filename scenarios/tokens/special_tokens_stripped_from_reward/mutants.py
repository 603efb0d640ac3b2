"""Broken remedies of special-tokens-stripped-from-reward, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant


@broken(only="test_well_formed")
def special_tokens_skipped(tokenizer, completion_ids):
    return tokenizer.decode(completion_ids, skip_special_tokens=True)


@broken(only="test_text_is_whole")
def ends_taken_away_everywhere(tokenizer, completion_ids):
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return tokenizer.decode([token for token in completion_ids if token not in ends])


@mutant("absent")
def tags_are_not_skipped(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    decode = PreTrainedTokenizerFast.decode

    def decoded(self, token_ids, skip_special_tokens=False, **arguments):
        ids = [int(token) for token in token_ids]
        while skip_special_tokens and ids and ids[-1] in (self.eos_token_id, self.pad_token_id):
            ids.pop()
        return decode(self, ids, **arguments)

    def batch_decoded(self, rows, **arguments):
        return [decoded(self, row, **arguments) for row in rows]

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", decoded)
    monkeypatch.setattr(PreTrainedTokenizerFast, "batch_decode", batch_decoded)


@mutant("changed", only="test_verl")
def completions_are_decoded_otherwise(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", fails)
