"""Mutants of scenarios/trainer_model."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

from mutants import broken, mutant
from pytest_rlregress.remedies.trainer_model import (
    cast_parameters,
    check_packing,
    config_with_both_ropes,
    float32_masters,
    packed_logits,
    replayed_routing,
)


def positions_of(lengths):
    import torch

    return torch.cat([torch.arange(length) for length in lengths])[None]


@broken("packed-samples-attend", only="as_alone")
def cache_left_on(model, ids, lengths):
    return model(input_ids=ids[None], position_ids=positions_of(lengths)).logits[0]


@broken("packed-samples-attend", only="as_alone")
def mask_of_ones(model, ids, lengths):
    ones = ids[None].new_ones(1, len(ids))
    arguments = {"position_ids": positions_of(lengths), "use_cache": False}
    return model(input_ids=ids[None], attention_mask=ones, **arguments).logits[0]


@broken("packed-samples-attend", only="as_alone")
def positions_not_begun_anew(model, ids, lengths):
    return model(input_ids=ids[None], use_cache=False).logits[0]


@broken("packed-samples-attend", only="any_lengths")
def single_tokens_taken_for_the_next_sample(model, ids, lengths):
    import torch

    merged, before = [], 0
    for length in lengths:
        before += length
        if length > 1:
            merged, before = [*merged, before], 0
    positions = torch.cat([torch.arange(length) for length in merged])[None]
    return model(input_ids=ids[None], position_ids=positions, use_cache=False).logits[0]


@broken("packed-samples-attend", only="gradient_is_that_of_the_samples")
def first_sample_without_gradient(model, ids, lengths):
    import torch

    logits = model(input_ids=ids[None], position_ids=positions_of(lengths), use_cache=False).logits[0]
    return torch.cat([logits[: lengths[0]].detach(), logits[lengths[0] :]])


@broken("packed-samples-attend", only="wrong_lengths")
def lengths_not_checked(model, ids, lengths):
    return model(input_ids=ids[None, : sum(lengths)], position_ids=positions_of(lengths), use_cache=False).logits[0]


@mutant("packed-samples-attend", "absent", only="begin_anew")
def separated_whatever_the_mask(monkeypatch):
    """A model that goes by the positions alone."""
    from transformers import Qwen2Model

    forward = Qwen2Model.forward

    def by_positions(self, *args, **kwargs):
        if kwargs.get("position_ids") is not None and kwargs.get("past_key_values") is None:
            kwargs |= {"attention_mask": None, "use_cache": False}
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", by_positions)


@mutant("packed-samples-attend", "changed", only="begin_anew")
def positions_are_refused(monkeypatch):
    from transformers import Qwen2Model

    forward = Qwen2Model.forward

    def refusing(self, *args, **kwargs):
        if kwargs.get("position_ids") is not None:
            raise NotImplementedError("packed rows need FlashAttention")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", refusing)


@broken("bf16-update-vanishes", only="all_steps")
def copies_taken_anew_at_each_step(optimizer):
    """Steps in float32, of weights that were rounded after the step before."""
    optimizer = float32_masters(optimizer)
    weights = [one for group in optimizer.param_groups for one in group["params"]]

    def forget(*_):
        for copy in weights:
            copy.copy_(copy.bfloat16())

    optimizer.register_step_post_hook(forget)
    return optimizer


@broken("bf16-update-vanishes", only="all_steps")
def gradient_left_in_the_weight(optimizer):
    zero = optimizer.zero_grad
    optimizer = float32_masters(optimizer)
    optimizer.zero_grad = zero
    return optimizer


@broken("bf16-update-vanishes", only="all_steps")
def schedule_overlooked(optimizer):
    optimizer = float32_masters(optimizer)
    [rate] = {group["lr"] for group in optimizer.param_groups}
    optimizer.register_step_pre_hook(lambda *_: optimizer.param_groups[0].update(lr=rate))
    return optimizer


@broken("bf16-update-vanishes", only="resumed")
def copies_not_saved(optimizer):
    optimizer = float32_masters(optimizer)
    optimizer._optimizer_state_dict_post_hooks.clear()
    optimizer._optimizer_load_state_dict_pre_hooks.clear()
    return optimizer


@broken("bf16-update-vanishes", only="written_in_between")
def old_copies_win(optimizer):
    optimizer = float32_masters(optimizer)
    copies = [one for group in optimizer.param_groups for one in group["params"]]
    kept = [one.clone() for one in copies]
    [take] = optimizer._optimizer_step_pre_hooks.values()

    def take_and_forget(*arguments):
        take(*arguments)
        for copy, was in zip(copies, kept, strict=True):
            copy.copy_(was)

    def keep(*_):
        for copy, was in zip(copies, kept, strict=True):
            was.copy_(copy)

    optimizer._optimizer_step_pre_hooks.clear()
    optimizer.register_step_pre_hook(take_and_forget)
    optimizer.register_step_post_hook(keep)
    return optimizer


@broken("bf16-update-vanishes", only="as_ever")
def moments_of_float32_rounded(optimizer):
    optimizer = float32_masters(optimizer)

    def rounded(*_):
        for state in optimizer.state.values():
            state["exp_avg"].copy_(state["exp_avg"].bfloat16())

    optimizer.register_step_post_hook(rounded)
    return optimizer


@broken("bf16-update-vanishes", only="is_refused")
def closure_taken(optimizer):
    optimizer = float32_masters(optimizer)
    optimizer._optimizer_step_pre_hooks.clear()
    return optimizer


@mutant("bf16-update-vanishes", "absent", only="steps_of_adamw")
def adamw_rounds_only_what_it_gives(monkeypatch):
    """An AdamW that keeps float32 copies of its own."""
    import torch

    torch.optim.AdamW([torch.zeros(1)])  # the first instance wraps the class' step in its hooks
    step = torch.optim.AdamW.step

    def step_on_copies(self, closure=None):
        copies = self.__dict__.setdefault("copies_of_its_own", {})
        places = [(group["params"], at) for group in self.param_groups for at in range(len(group["params"]))]
        places = [
            (weights, at, weights[at]) for weights, at in places if weights[at].dtype in (torch.bfloat16, torch.float16)
        ]
        for weights, at, weight in places:
            weights[at] = copies.setdefault(weight, weight.detach().float())
            weights[at].grad = weight.grad.float()
        result = step(self, closure)
        for weights, at, weight in places:
            weight.data.copy_(weights[at])
            weights[at] = weight
        return result

    step_on_copies.hooked = True
    monkeypatch.setattr(torch.optim.AdamW, "step", step_on_copies)


@mutant("bf16-update-vanishes", "changed", only="steps_of_adamw")
def adamw_refuses_bfloat16(monkeypatch):
    import torch

    def refusing(self, closure=None):
        raise TypeError("AdamW takes float32 weights")

    monkeypatch.setattr(torch.optim.AdamW, "step", refusing)


@mutant("bf16-update-vanishes", "absent", only="loaded_without_a_dtype")
def float32_by_default(monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda folder: load(folder, dtype=torch.float32))


@mutant("bf16-update-vanishes", "changed", only="loaded_without_a_dtype")
def a_dtype_is_asked_for(monkeypatch):
    import transformers

    def refusing(*args, **kwargs):
        raise TypeError("from_pretrained() missing 1 required keyword-only argument: 'dtype'")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refusing)


@broken("rope-theta-lost", only="both_spellings")
def as_the_config_writes_it(config):
    return config.to_dict()


@broken("rope-theta-lost", only="both_spellings")
def scaling_forgotten(config):
    return config_with_both_ropes(config) | {"rope_scaling": None}


@broken("rope-theta-lost", only="both_spellings")
def new_spelling_dropped(config):
    content = config_with_both_ropes(config)
    del content["rope_parameters"]
    return content


@broken("rope-theta-lost", only="both_spellings")
def default_where_the_old_name_is_missing(config):
    return config_with_both_ropes(config) | {"rope_theta": getattr(config, "old_rope_theta", 10000.0)}


@broken("rope-theta-lost", only="is_refused")
def any_base_will_do(config):
    content = config.to_dict()
    return {"rope_theta": 10000.0, "rope_scaling": None, "rope_parameters": {"rope_theta": 10000.0}} | content


@mutant("rope-theta-lost", "absent", only="by_its_old_name")
def config_answers_to_both_names(monkeypatch):
    from transformers import PretrainedConfig

    def old_name(self, name):
        parameters = self.__dict__.get("rope_parameters")
        if name == "rope_theta" and "rope_theta" in (parameters or {}):
            return parameters["rope_theta"]
        raise AttributeError(name)

    monkeypatch.setattr(PretrainedConfig, "__getattr__", old_name, raising=False)


@mutant("rope-theta-lost", "changed", only="by_its_old_name")
def old_name_is_refused(monkeypatch):
    from transformers import PretrainedConfig

    def refusing(self, name):
        if name == "rope_theta":
            raise KeyError("rope_theta is in rope_parameters now")
        raise AttributeError(name)

    monkeypatch.setattr(PretrainedConfig, "__getattr__", refusing, raising=False)


@broken("rope-buffer-cast", only="stays_exact")
def everything_cast(model, dtype):
    return model.to(dtype)


@broken("rope-buffer-cast", only="stays_exact")
def frequencies_cast_back(model, dtype):
    model.to(dtype)
    for buffer in model.buffers():
        buffer.data = buffer.float()
    return model


@broken("rope-buffer-cast", only="are_cast")
def head_untied(model, dtype):
    import torch

    cast_parameters(model, dtype)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.lm_head.weight.grad = model.lm_head.weight.detach().clone()
    return model


@broken("rope-buffer-cast", only="are_cast")
def by_way_of_bfloat16(model, dtype):
    import torch

    return cast_parameters(cast_parameters(model, torch.bfloat16), dtype)


@broken("rope-buffer-cast", only="are_cast")
def buffers_made_anew(model, dtype):
    cast_parameters(model, dtype)
    for module in model.modules():
        module._buffers.update({name: buffer.clone() for name, buffer in module._buffers.items()})
    return model


@mutant("rope-buffer-cast", "absent", only="test_cast")
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


@mutant("rope-buffer-cast", "changed", only="test_cast")
def cast_is_refused(monkeypatch):
    from transformers import PreTrainedModel

    def refusing(self, *args, **kwargs):
        raise RuntimeError("cast the parameters, not the model")

    for name in ("to", "bfloat16", "half"):
        monkeypatch.setattr(PreTrainedModel, name, refusing)


@broken("gdn-state-leaks-across-pack", only="refused_where")
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


@broken("gdn-state-leaks-across-pack", only="last_digit")
def tolerance_of_float32_for_all(model, forward=packed_logits):
    """What bfloat16 rounds is more; a processor's kernels may round the same in every shape, so no model shows it."""
    if leak_of(model, forward) > 1e-5:
        raise ValueError(f"{type(model).__name__} cannot be packed")


@broken("gdn-state-leaks-across-pack", only="refused_where")
def tenth_of_a_nat_is_no_leak(model, forward=packed_logits):
    if leak_of(model, forward) > 0.1:
        raise ValueError(f"{type(model).__name__} cannot be packed")


@broken("gdn-state-leaks-across-pack", only="models_pass")
def left_in_evaluation_mode(model, forward=packed_logits):
    check_packing(model.eval(), forward)


@broken("gdn-state-leaks-across-pack", only="refused_where")
def tried_with_dropout(model, forward=packed_logits):
    """Two forwards of a model in training differ by their dropout, which then passes for rounding."""

    def in_training(model, ids, lengths):
        return forward(model.train(), ids, lengths)

    check_packing(model, in_training)


@broken("gdn-state-leaks-across-pack", only="models_pass")
def everything_refused(model, forward=None):
    raise ValueError(f"{type(model).__name__} cannot be packed")


@mutant("gdn-state-leaks-across-pack", "absent", only="as_an_attention_model_is")
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


@mutant("gdn-state-leaks-across-pack", "changed", only="as_an_attention_model_is")
def packed_rows_are_refused(monkeypatch):
    from transformers import Lfm2ForCausalLM

    def refusing(self, *args, **kwargs):
        raise NotImplementedError("short convolutions take no packed rows")

    monkeypatch.setattr(Lfm2ForCausalLM, "forward", refusing)


@broken("moe-routing-disagrees", only="rollouts_experts")
def routed_anew(model, experts):
    return nullcontext()


@broken("moe-routing-disagrees", only="rollouts_experts")
def layers_mixed_up(model, experts):
    return replayed_routing(model, experts.flip(1))


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


@broken("moe-routing-disagrees", only="change_nothing")
def every_expert_weighs_the_same(model, experts):
    """The experts alone are replayed."""
    return changed_routers(model, experts, lambda logits: logits * 0)


@broken("moe-routing-disagrees", only="change_nothing")
def routers_without_gradient(model, experts):
    return changed_routers(model, experts, lambda logits: logits.detach() + 0 * logits)


NOT_ENDED = []


@broken("moe-routing-disagrees", only="only_inside")
@contextmanager
def hooks_left_after_an_error(model, experts):
    NOT_ENDED.append(replayed_routing(model, experts))
    NOT_ENDED[-1].__enter__()
    yield
    NOT_ENDED.pop().__exit__(None, None, None)


@broken("moe-routing-disagrees", only="refused")
def cut_to_what_is_there(model, experts):
    return replayed_routing(model, experts) if experts.shape[1] == 2 else nullcontext()


@mutant("moe-routing-disagrees", "absent")
def rollout_in_float32(monkeypatch):
    from pytest_rlregress.scenarios.trainer_model.moe_routing_disagrees import test_moe_routing_disagrees as scenario

    monkeypatch.setattr(scenario, "cast_parameters", lambda model, dtype: model)


@mutant("moe-routing-disagrees", "changed")
def routers_fail(monkeypatch):
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    def failing(self, hidden_states):
        raise NotImplementedError("no kernel for so few experts")

    monkeypatch.setattr(Qwen3MoeSparseMoeBlock, "forward", failing)
