"""Broken remedies of gdn-state-leaks-across-pack, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.trainer_model import packed_logits


@broken(only="refused_where")
def delta_net_by_the_name_of_its_layers(model, forward=None):
    """There are other recurrent layers, and names for them."""
    if "linear_attention" in getattr(model.config, "layer_types", []):
        raise ValueError(f"{type(model).__name__} cannot be packed")


def leak_of(model, forward):
    """Mean |difference| in nats of a sample that is packed behind another to itself alone, whatever the rounding."""
    import torch

    ids = torch.arange(48) * 37 % 256
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        alone, packed = forward(model, ids[24:], [24]), forward(model, ids, [24, 24])[24:]
    for module, training in modes.items():
        module.training = training
    return (alone.double().log_softmax(-1) - packed.double().log_softmax(-1)).abs().mean().item()


@broken(only="last_digit")
def tolerance_of_float32_for_all(model, forward=packed_logits):
    """What bfloat16 rounds is more; a processor's kernels may round the same in every shape, so no model shows it."""
    if leak_of(model, forward) > 1e-5:
        raise ValueError(f"{type(model).__name__} cannot be packed")


@mutant("absent", only="as_an_attention_model_is")
def state_begins_anew_with_the_positions(monkeypatch):
    """Kernels that find the borders in the positions."""
    import torch
    from transformers import Lfm2ForCausalLM

    forward = Lfm2ForCausalLM.forward

    def each_alone(self, input_ids=None, position_ids=None, **kwargs):
        if position_ids is None:
            return forward(self, input_ids=input_ids, **kwargs)
        lengths = torch.diff((position_ids[0] == 0).nonzero()[:, 0], append=torch.tensor([position_ids.shape[1]]))
        parts = [forward(self, input_ids=one, **kwargs) for one in input_ids.split(lengths.tolist(), dim=1)]
        parts[0].logits = torch.cat([part.logits for part in parts], dim=1)
        return parts[0]

    monkeypatch.setattr(Lfm2ForCausalLM, "forward", each_alone)


@mutant("changed", only="as_an_attention_model_is")
def packed_rows_are_refused(monkeypatch):
    from transformers import Lfm2ForCausalLM

    def refusing(self, *args, **kwargs):
        raise NotImplementedError("short convolutions take no packed rows")

    monkeypatch.setattr(Lfm2ForCausalLM, "forward", refusing)
