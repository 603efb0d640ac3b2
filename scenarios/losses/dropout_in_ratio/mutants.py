from mutants import broken, fails, replaces
from pytest_rlregress.remedies.losses import disable_dropout
from pytest_rlregress.stack.lazy import torch


@broken(only="test_ratio_is_1")
def modules_alone(model):
    """As TRL's disable_dropout."""
    found = [module for module in model.modules() if isinstance(module, torch.nn.Dropout) and module.p]
    for module in found:
        module.p = 0.0
    return len(found)


@broken(only="test_model_is_the_same")
def parameters_frozen(model):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return disable_dropout(model)


replaces("absent", "torch.nn.functional.dropout")(lambda input, *args, **options: input)
replaces("changed", "transformers.Qwen2ForCausalLM.forward")(fails)
