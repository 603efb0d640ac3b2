from mutants import broken, replaces
from pytest_rlregress.stack.lazy import torch


def positions_of(lengths):
    return torch.cat([torch.arange(length) for length in lengths])[None]


@broken(only="as_alone")
def cache_left_on(model, ids, lengths):
    return model(input_ids=ids[None], position_ids=positions_of(lengths)).logits[0]


@broken(only="whatever_precedes")
def single_tokens_taken_for_the_next_sample(model, ids, lengths):
    merged, before = [], 0
    for length in lengths:
        before += length
        if length > 1:
            merged, before = [*merged, before], 0
    positions = torch.cat([torch.arange(length) for length in merged])[None]
    return model(input_ids=ids[None], position_ids=positions, use_cache=False).logits[0]


@replaces("absent", "transformers.Qwen2Model.forward", only="begin_anew")
def separated_whatever_the_mask(original, self, *args, **kwargs):
    """A model that goes by the positions alone."""
    if kwargs.get("position_ids") is not None and kwargs.get("past_key_values") is None:
        kwargs |= {"attention_mask": None, "use_cache": False}
    return original(self, *args, **kwargs)


@replaces("changed", "transformers.Qwen2Model.forward", only="begin_anew")
def positions_are_refused(original, self, *args, **kwargs):
    if kwargs.get("position_ids") is not None:
        raise NotImplementedError("packed rows need FlashAttention")
    return original(self, *args, **kwargs)
