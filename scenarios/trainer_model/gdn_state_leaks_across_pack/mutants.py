from mutants import broken, replaces
from pytest_rlregress.stack.lazy import torch


@broken(only="refused_where")
def delta_net_by_the_name_of_its_layers(model, forward=None):
    """There are other recurrent layers, and names for them."""
    if "linear_attention" in getattr(model.config, "layer_types", []):
        raise ValueError(f"{type(model).__name__} cannot be packed")


@replaces("absent", "transformers.Lfm2ForCausalLM.forward", only="as_an_attention_model_is")
def state_begins_anew_with_the_positions(original, self, input_ids=None, position_ids=None, **kwargs):
    """Kernels that find the borders in the positions."""
    if position_ids is None:
        return original(self, input_ids=input_ids, **kwargs)
    lengths = torch.diff((position_ids[0] == 0).nonzero()[:, 0], append=torch.tensor([position_ids.shape[1]]))
    parts = [original(self, input_ids=one, **kwargs) for one in input_ids.split(lengths.tolist(), dim=1)]
    parts[0].logits = torch.cat([part.logits for part in parts], dim=1)
    return parts[0]


@replaces("changed", "transformers.Lfm2ForCausalLM.forward", only="as_an_attention_model_is")
def packed_rows_are_refused(self, *args, **kwargs):
    raise NotImplementedError("short convolutions take no packed rows")
