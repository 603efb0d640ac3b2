from contextlib import contextmanager, nullcontext

from mutants import broken, replaces
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


replaces("absent", ".test_moe_routing_disagrees.cast_parameters")(lambda model, dtype: model)


@replaces("changed", "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock.forward")
def routers_fail(self, hidden_states):
    raise NotImplementedError("no kernel for so few experts")
