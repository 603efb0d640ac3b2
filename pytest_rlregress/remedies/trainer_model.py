"""Remedies for the model as the trainer runs it: packing, positions, precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = [
    "cast_parameters",
    "check_packing",
    "config_with_both_ropes",
    "float32_masters",
    "packed_logits",
    "replayed_routing",
]


def packed_logits(model: PreTrainedModel, ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Run samples packed into one row through a model so that none attends to another.

    transformers separates them by their positions, and only where it is given no attention mask and no cache. For
    models of attention layers; one with recurrent layers carries its state over the borders all the same.

    Args:
        model: A causal language model; its configuration and its mode are left as they are.
        ids: Token ids of all samples, one after the other, shape ``[tokens]``, int64, on the model's device.
        lengths: Tokens of each sample, in that order.

    Returns:
        Logits, shape ``[tokens, vocabulary]``, in the model's dtype, with their gradient if it is recorded.

    Raises:
        ValueError: A length is below one, or they do not add up to the number of ids.
    """
    import torch

    if min(lengths, default=0) < 1 or sum(lengths) != len(ids):
        raise ValueError(f"{len(ids)} packed ids cannot be samples of {list(lengths)} tokens")
    positions = torch.cat([torch.arange(length, device=ids.device) for length in lengths])
    return model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]


def check_packing(
    model: PreTrainedModel,
    forward: Callable[[PreTrainedModel, torch.Tensor, Sequence[int]], torch.Tensor] = packed_logits,
) -> None:
    """Try once, before training, that packed samples come out of a model as each alone does.

    Recurrent layers (gated delta net, Mamba, short convolutions) carry their state over the border of two samples,
    unless the kernels that are installed and the arguments they are given tell them where it is.

    Args:
        model: A causal language model; run in evaluation mode without gradient, and left in the mode it was in.
        forward: Gives the logits, ``[tokens, vocabulary]``, of packed ids, ``[tokens]``, and the samples' lengths.

    Raises:
        ValueError: They differ by more than the model's rounding explains. Such a model takes its samples padded or
            one by one.
    """
    import torch

    length, modes = 24, {module: module.training for module in model.modules()}
    ids = torch.arange(2 * length, device=model.device) * 37 % model.config.vocab_size
    model.eval()
    try:
        with torch.no_grad():
            alone = torch.cat([forward(model, one, [length]) for one in ids.split(length)]).double()
            packed = forward(model, ids, [length, length]).double()
    finally:
        for module, training in modes.items():
            module.training = training
    # Nothing precedes the first sample: it differs by the kernels' rounding alone, the last digit of a logit at least.
    rounding, off = (packed.log_softmax(-1) - alone.log_softmax(-1)).abs().view(2, -1).mean(-1).tolist()
    last_digit = torch.finfo(model.dtype).eps * alone.abs().mean().item()
    if not off <= 10 * rounding + last_digit:
        raise ValueError(
            f"{type(model).__name__} cannot be packed so: behind another sample one is {off:.2g} nats a token off what "
            f"it is alone, the first, which nothing precedes, {rounding:.2g}; pad the samples, or run them one by one"
        )


@contextmanager
def replayed_routing(model: PreTrainedModel, experts: torch.Tensor) -> Iterator[None]:
    """Send each token to the experts that it went to in the rollout, inside the context.

    Their weights are the model's own: softmax over its logits of those experts, so that routers get their gradient. The
    order of a token's experts does not count. A backward that recomputes activations belongs inside too. For Qwen3-MoE
    and models built like it, with a router ``mlp.gate`` in some or all layers.

    Args:
        model: Left as it was when the context ends, however it ends.
        experts: Shape ``[tokens, layers, experts a token]``, int64, for the tokens of each forward, row by row, and the
            layers that have experts, from the first. As the engine returns them.

    Raises:
        ValueError: The experts are not of as many layers, experts a token or, at the forward, tokens; or the config has
            no ``norm_topk_prob`` or says that weights are not to add up to one.
    """
    import torch

    decoder = model.get_decoder() or model.base_model  # transformers 4.56 has no decoder of a decoder
    layers = [layer.mlp.gate for layer in decoder.layers if hasattr(layer.mlp, "gate")]
    if experts.dim() != 3 or experts.shape[1] != len(layers):
        raise ValueError(f"experts {tuple(experts.shape)} for {len(layers)} layers with a router")
    if experts.shape[2] != model.config.num_experts_per_tok:
        raise ValueError(f"experts {tuple(experts.shape)} for {model.config.num_experts_per_tok} experts a token")
    if not getattr(model.config, "norm_topk_prob", False):
        raise ValueError("the weights of experts are replayed where they add up to one: norm_topk_prob")

    def replay(chosen: torch.Tensor, output: Any) -> Any:
        logits = output[0] if isinstance(output, tuple) else output
        if logits.shape[0] != chosen.shape[0]:
            raise ValueError(f"a forward of {logits.shape[0]} tokens, and experts for {chosen.shape[0]} tokens")
        if isinstance(output, tuple):  # since transformers 5: logits, weights, experts
            return logits, logits.gather(-1, chosen).float().softmax(-1).type_as(output[1]), chosen
        # Before, the layer chose by the logits: of the others it gets none.
        return torch.full_like(logits, -torch.inf).scatter(-1, chosen, logits.gather(-1, chosen))

    with ExitStack() as hooks:
        for at, gate in enumerate(layers):
            chosen = experts[:, at]
            hooks.callback(
                gate.register_forward_hook(lambda _, __, output, chosen=chosen: replay(chosen, output)).remove
            )
        yield


def float32_masters(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Let an optimizer step float32 copies of bfloat16 and float16 weights, and round those into the weights.

    Gradients are taken from the weights and cleared there by ``zero_grad``; what a schedule sets in ``param_groups``
    counts. ``state_dict`` holds the copies too, and ``load_state_dict`` takes them up again. A weight that something
    else wrote, as loading a checkpoint does, is copied again.

    Args:
        optimizer: Over the model's parameters, before its first step; changed in place. Weights that are float32
            already, or have no gradient, are treated as ever.

    Returns:
        ``optimizer``.

    Raises:
        ValueError: The optimizer has made a step; and from ``step``, where it is given a closure, which would leave its
            gradients where the copies are not.
        KeyError: From ``load_state_dict``, for a state that holds no copies.
    """
    import torch

    if optimizer.state:
        raise ValueError("float32 masters come before the first step: the moments are of the weights' dtype already")
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # each weight and its float32 copy
    for group in optimizer.param_groups:
        for at, weight in enumerate(group["params"]):
            if weight.dtype in (torch.bfloat16, torch.float16):
                copies.append((weight, weight.detach().float()))
                group["params"][at] = copies[-1][1]

    def take_gradients(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (*args[1:], kwargs.get("closure"))[0] is not None:
            raise ValueError("with float32 masters step() takes no closure: call it after backward()")
        for weight, copy in copies:
            now = weight.detach()
            copy.copy_(torch.where(now == copy.to(now.dtype), copy, now.float()))
            copy.grad = None if weight.grad is None else weight.grad.float()

    def round_into_weights(*_: Any) -> None:
        for weight, copy in copies:
            weight.data.copy_(copy)
            copy.grad = None

    def save_copies(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "float32_masters": [copy.clone() for _, copy in copies]}

    def load_copies(_: Any, state: dict[str, Any]) -> None:
        for (_, copy), saved in zip(copies, state["float32_masters"], strict=True):
            copy.copy_(saved)
        round_into_weights()

    zero_grad: Callable[..., None] = optimizer.zero_grad

    def zero_both(set_to_none: bool = True) -> None:
        zero_grad(set_to_none)
        for weight, _ in copies:
            weight.grad = None

    optimizer.zero_grad = zero_both
    optimizer.register_step_pre_hook(take_gradients)
    optimizer.register_step_post_hook(round_into_weights)
    optimizer.register_state_dict_post_hook(save_copies)
    optimizer.register_load_state_dict_pre_hook(load_copies)
    return optimizer


def cast_parameters(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Cast a model's parameters and no buffer: the frequencies of its rotary embedding stay float32.

    Args:
        model: Changed in place: parameters, and gradients that they have, are rounded to ``dtype``; tied ones stay
            tied. Its buffers are the tensors that they were.
        dtype: A floating-point one.

    Returns:
        ``model``.
    """
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    model.to(dtype)
    for module, name, buffer in buffers:
        module._buffers[name] = buffer
    return model


def config_with_both_ropes(config: PretrainedConfig) -> dict[str, Any]:
    """Return a config.json's content with the rotary embedding as transformers 5 spells it, and as it was before.

    ``rope_theta``, ``rope_scaling`` (None if there is none) and ``partial_rotary_factor`` (where there is one) at the
    top, as before; ``rope_parameters`` with all of them, as since. The installed transformers makes the same model of
    it. Everything else is ``config.to_dict()``.

    Args:
        config: Of a language model whose layers have one rotary embedding; left as it is.

    Raises:
        ValueError: The config has no base, or several: one a kind of layer has no old spelling.
    """
    content: dict[str, Any] = config.to_dict()
    new = dict(content.get("rope_parameters") or content.get("rope_scaling") or {})
    for key in ("rope_theta", "partial_rotary_factor"):  # transformers 4 has them at the top alone
        if key in content:
            new.setdefault(key, content[key])
    new.setdefault("rope_type", new.get("type", "default"))
    if "rope_theta" not in new or "rope_local_base_freq" in content:
        raise ValueError(f"{type(config).__name__} has no rotary base, or several: {content.get('rope_parameters')}")
    old = {key: value for key, value in new.items() if key not in ("rope_theta", "partial_rotary_factor")}
    content |= {key: new[key] for key in ("rope_theta", "partial_rotary_factor") if key in new}
    content["rope_scaling"] = old if old["rope_type"] != "default" else None
    content["rope_parameters"] = new
    return content
