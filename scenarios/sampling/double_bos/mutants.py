"""Broken remedies of double-bos, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant


@broken(only="test_rendered")
def tokenizer_as_it_is(tokenizer, text):
    return tokenizer.encode(text)


@broken(only="test_plain")
def never_special(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


@mutant("absent", only="test_text_for_the_trainer")
def tokenizer_looks_first(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    call = PreTrainedTokenizerFast.__call__

    def looking(self, text, **options):
        written = bool(self.bos_token) and isinstance(text, str) and text.startswith(self.bos_token)
        return call(self, text, **{"add_special_tokens": not written, **options})

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", looking)


@mutant("changed", only="test_text_for_the_trainer")
def template_fails(monkeypatch):
    error = TypeError("can only concatenate str (not 'NoneType') to str")
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.apply_chat_template", failing(error))
