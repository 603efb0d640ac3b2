from mutants import broken, replaces
from pytest_rlregress.stack.lazy import torch


@broken(only="test_a_bad_gradient")
def stepped_all_the_same(optimizer, max_norm):
    norm = _clipped(optimizer, max_norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm


@broken(only="test_engine_keeps")
def bad_gradients_are_zero(optimizer, max_norm):
    """The step is made with what is left, and decays the weights."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            torch.nan_to_num_(parameter.grad, 0, 0, 0)
        group["weight_decay"] = 1.0
    return stepped_all_the_same(optimizer, max_norm)


def _clipped(optimizer, max_norm):
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm).item()


@replaces("absent", "torch.nn.utils.clip_grad_norm_")
def clipping_drops_what_is_not_finite(original, parameters, *args, **options):
    parameters = list(parameters)
    norm = original(parameters, *args, **options)
    if not norm.isfinite():
        for parameter in parameters:
            parameter.grad = None
    return norm


replaces("changed", "torch.nn.utils.clip_grad_norm_", only="test_step")(
    lambda original, *args, **options: original(*args, **options, error_if_nonfinite=True)
)
