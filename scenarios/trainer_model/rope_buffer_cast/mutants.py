from mutants import broken, fails, mutant, replaces
from pytest_rlregress.remedies.trainer_model import cast_parameters
from pytest_rlregress.stack.lazy import torch


@broken(only="stays_exact")
def everything_cast(model, dtype):
    return model.to(dtype)


@broken(only="are_cast")
def head_untied(model, dtype):
    cast_parameters(model, dtype)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.lm_head.weight.grad = model.lm_head.weight.detach().clone()
    return model


@mutant("absent", only="test_cast")
def frequencies_computed_when_needed(monkeypatch):
    """A rotary embedding that keeps no buffer that a cast could round."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

    made, forward = Qwen2RotaryEmbedding.__init__, Qwen2RotaryEmbedding.forward

    def remembers_its_config(self, config, *args, **kwargs):
        made(self, config, *args, **kwargs)
        self._of = config

    def computed(self, x, position_ids):
        fresh = Qwen2RotaryEmbedding.__new__(Qwen2RotaryEmbedding)
        made(fresh, self._of)
        return forward(fresh, x, position_ids)

    monkeypatch.setattr(Qwen2RotaryEmbedding, "__init__", remembers_its_config)
    monkeypatch.setattr(Qwen2RotaryEmbedding, "forward", computed)


replaces("changed", "transformers.PreTrainedModel.to", only="test_cast")(fails)
