"""Broken remedies of nan-step-exclamation-marks, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant


@broken(only="test_a_bad_gradient")
def stepped_all_the_same(optimizer, max_norm):
    norm = _clipped(optimizer, max_norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm


@broken(only="test_engine_keeps")
def bad_gradients_are_zero(optimizer, max_norm):
    """The step is made with what is left, and decays the weights."""
    import torch

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            torch.nan_to_num_(parameter.grad, 0, 0, 0)
        group["weight_decay"] = 1.0
    return stepped_all_the_same(optimizer, max_norm)


def _clipped(optimizer, max_norm):
    import torch

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm).item()


@mutant("absent")
def clipping_drops_what_is_not_finite(monkeypatch):
    import torch

    clip = torch.nn.utils.clip_grad_norm_

    def clip_grad_norm_(parameters, *args, **options):
        parameters = list(parameters)
        norm = clip(parameters, *args, **options)
        if not norm.isfinite():
            for parameter in parameters:
                parameter.grad = None
        return norm

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_)


@mutant("changed", only="test_step")
def clipping_raises(monkeypatch):
    import functools

    import torch

    strict = functools.partial(torch.nn.utils.clip_grad_norm_, error_if_nonfinite=True)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", strict)
