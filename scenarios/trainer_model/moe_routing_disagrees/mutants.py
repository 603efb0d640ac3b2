"""Broken remedies of moe-routing-disagrees, and stacks that differ."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

from mutants import broken, mutant
from pytest_rlregress.remedies.trainer_model import replayed_routing


@broken(only="rollouts_experts")
def routed_anew(model, experts):
    return nullcontext()


@contextmanager
def changed_routers(model, experts, change):
    """The replay, with ``change(logits)`` of each router before it."""
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]

    def changed(module, arguments, output):
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    hooks = [gate.register_forward_hook(changed) for gate in gates]
    with replayed_routing(model, experts):
        yield
    for hook in hooks:
        hook.remove()


@broken(only="change_nothing")
def every_expert_weighs_the_same(model, experts):
    """The experts alone are replayed."""
    return changed_routers(model, experts, lambda logits: logits * 0)


@mutant("absent")
def rollout_in_float32(monkeypatch):
    from pytest_rlregress.scenarios.trainer_model.moe_routing_disagrees import test_moe_routing_disagrees as scenario

    monkeypatch.setattr(scenario, "cast_parameters", lambda model, dtype: model)


@mutant("changed")
def routers_fail(monkeypatch):
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    def failing(self, hidden_states):
        raise NotImplementedError("no kernel for so few experts")

    monkeypatch.setattr(Qwen3MoeSparseMoeBlock, "forward", failing)
