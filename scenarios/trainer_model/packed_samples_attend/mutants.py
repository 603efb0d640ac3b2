"""Broken remedies of packed-samples-attend, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant


def positions_of(lengths):
    import torch

    return torch.cat([torch.arange(length) for length in lengths])[None]


@broken(only="as_alone")
def cache_left_on(model, ids, lengths):
    return model(input_ids=ids[None], position_ids=positions_of(lengths)).logits[0]


@broken(only="any_lengths")
def single_tokens_taken_for_the_next_sample(model, ids, lengths):
    import torch

    merged, before = [], 0
    for length in lengths:
        before += length
        if length > 1:
            merged, before = [*merged, before], 0
    positions = torch.cat([torch.arange(length) for length in merged])[None]
    return model(input_ids=ids[None], position_ids=positions, use_cache=False).logits[0]


@mutant("absent", only="begin_anew")
def separated_whatever_the_mask(monkeypatch):
    """A model that goes by the positions alone."""
    from transformers import Qwen2Model

    forward = Qwen2Model.forward

    def by_positions(self, *args, **kwargs):
        if kwargs.get("position_ids") is not None and kwargs.get("past_key_values") is None:
            kwargs |= {"attention_mask": None, "use_cache": False}
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", by_positions)


@mutant("changed", only="begin_anew")
def positions_are_refused(monkeypatch):
    from transformers import Qwen2Model

    forward = Qwen2Model.forward

    def refusing(self, *args, **kwargs):
        if kwargs.get("position_ids") is not None:
            raise NotImplementedError("packed rows need FlashAttention")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", refusing)
