"""Mutants of scenarios/weight_sync."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.rollout import reload_by_worker, reload_weights
from pytest_rlregress.remedies.weight_sync import (
    adapter_request,
    load_checked,
    merged_weights,
    step_if_finite,
)

SCENARIOS = "pytest_rlregress.scenarios.weight_sync"


def failing(error):
    def function(*args, **options):
        raise error

    return function


@broken("prefix-cache-stale-weights", only="test_every_update")
def first_update_only(llm):
    if not hasattr(llm, "was_reset"):
        llm.was_reset = True
        llm.reset_prefix_cache(reset_running_requests=True)


@broken("prefix-cache-stale-weights", only="test_a_running_request")
def reset_is_refused(llm):
    llm.reset_prefix_cache()


@broken("prefix-cache-stale-weights", only="test_a_running_request")
def running_requests_are_aborted(llm):
    llm.llm_engine.abort_request(["0"])
    llm.reset_prefix_cache()


@broken("prefix-cache-stale-weights", only="test_a_refusal")
def refusal_is_not_looked_at(llm):
    llm.reset_prefix_cache(reset_running_requests=True)


@mutant("prefix-cache-stale-weights", "absent")
def update_resets_the_cache(monkeypatch):
    """https://github.com/vllm-project/vllm/pull/46125 took it back."""
    from vllm import LLM

    call = LLM.collective_rpc

    def collective_rpc(self, method, *args, **options):
        results = call(self, method, *args, **options)
        if method == "reload_weights":
            self.llm_engine.reset_prefix_cache(reset_running_requests=True)
        return results

    monkeypatch.setattr(LLM, "collective_rpc", collective_rpc)


@mutant("prefix-cache-stale-weights", "changed", only="test_no_reset")
def update_fails_otherwise(monkeypatch):
    monkeypatch.setattr(
        f"{SCENARIOS}.test_prefix_cache_stale_weights.reload_by_worker",
        failing(RuntimeError("EngineCore encountered an issue")),
    )


@broken("partial-weight-sync", only="test_a_part_is_refused")
def only_counted(load, weights, names):
    """A number that no one compares."""
    weights = list(weights)
    load(iter(weights))
    print(f"{len(weights)} of {len(names)} tensors came")


@broken("partial-weight-sync", only="test_a_part_is_refused[raised_out_of_the_iterator-every-second]")
def raised_out_of_the_iterator(load, weights, names):
    came = set()

    def pairs():
        for name, tensor in weights:
            came.add(name)
            yield name, tensor
        if came != {*names}:
            missing = [name for name in names if name not in came]
            raise ValueError(f"{len(missing)} did not come: {missing[0]}")

    load(pairs())


@broken("partial-weight-sync", only="test_exactly_the_names")
def number_compared(load, weights, names):
    weights = list(weights)
    load(iter(weights))
    if len(weights) != len(names):
        raise ValueError(f"{' '.join(names)} {' '.join(name for name, _ in weights)}")


@broken("partial-weight-sync", only="test_exactly_the_names")
def unknown_left_out(load, weights, names):
    load_checked(load, ((name, tensor) for name, tensor in weights if name in names), names)


@broken("partial-weight-sync", only="test_exactly_the_names")
def twice_is_once(load, weights, names):
    load_checked(load, dict(weights).items(), names)


@broken("partial-weight-sync", only="test_exactly_the_names")
def sorted_by_name(load, weights, names):
    load_checked(load, sorted(weights, key=lambda pair: pair[0]), names)


@broken("partial-weight-sync", only="test_exactly_the_names")
def copied(load, weights, names):
    load_checked(load, ((name, tensor.clone()) for name, tensor in weights), names)


@broken("partial-weight-sync", only="test_one_tensor")
def read_at_once(load, weights, names):
    load_checked(load, list(weights), names)


@broken("partial-weight-sync", only="finite")
def nan_only(load, weights, names):
    import torch

    load_checked(load, ((name, torch.nan_to_num(tensor, nan=float("nan"))) for name, tensor in weights), names)


@broken("partial-weight-sync", only="test_an_error")
def every_error_is_one_of_names(load, weights, names):
    try:
        load_checked(load, weights, names)
    except Exception as error:
        raise ValueError(f"weight sync failed: {error}") from error


@mutant("partial-weight-sync", "absent")
def sender_sends_all(monkeypatch):
    monkeypatch.setattr(
        f"{SCENARIOS}.test_partial_weight_sync.sent", lambda model, part: list(model.state_dict().items())
    )


@mutant("partial-weight-sync", "changed")
def loader_counts(monkeypatch):
    """As https://github.com/vllm-project/vllm/issues/52689 asks for: the failure is not silent any more."""
    from vllm import LLM

    call = LLM.collective_rpc

    def collective_rpc(self, method, *args, **options):
        if method == "reload_weights":
            weights = list(options["kwargs"]["weights_iterator"])
            if len(weights) < 26:
                raise RuntimeError(f"{len(weights)} weights came")
            options["kwargs"] = {"weights_iterator": iter(weights)}
        return call(self, method, *args, **options)

    monkeypatch.setattr(LLM, "collective_rpc", collective_rpc)


@broken("lora-same-id-stale", only="test_each_version")
def one_id_for_all(name, version, folder):
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"{name}@{version}", 4711, str(folder))


@broken("lora-same-id-stale", only="test_one_folder")
def one_name_for_all(name, version, folder):
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, adapter_request(name, version, folder).lora_int_id, str(folder))


@broken("lora-same-id-stale", only="test_one_folder")
def loaded_in_place(name, version, folder):
    """The bytes are the new ones, what is cached of a prompt is not."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, 4712, str(folder), load_inplace=True)


@broken("lora-same-id-stale", only="test_two_adapters")
def version_is_the_id(name, version, folder):
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"{name}@{version}", 5000 + version, str(folder))


@broken("lora-same-id-stale", only="test_an_id_and_a_name")
def id_counts_the_calls(name, version, folder, calls=[]):  # noqa: B006 - kept on purpose
    from vllm.lora.request import LoRARequest

    calls.append(name)
    return LoRARequest(f"{name}@{version}", len(calls), str(folder))


@broken("lora-same-id-stale", only="test_an_id_and_a_name")
def name_run_into_version(name, version, folder):
    return adapter_request(f"{name}{version}".replace(" ", ""), 0, folder)


@broken("lora-same-id-stale", only="test_an_id_and_a_name")
def id_of_ten_bits(name, version, folder):
    from vllm.lora.request import LoRARequest

    made = adapter_request(name, version, folder)
    return LoRARequest(made.lora_name, made.lora_int_id % 1024 + 1, str(folder))


@mutant("lora-same-id-stale", "absent", only="test_same_id")
def always_loaded_again(monkeypatch):
    """And the prefix cache is reset each time, running requests' too."""
    from vllm import LLM
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    add, generate = LRUCacheWorkerLoRAManager.add_adapter, LLM.generate

    def add_adapter(self, lora_request):
        self._adapter_manager.remove_adapter(lora_request.lora_int_id)
        return add(self, lora_request)

    def generate_anew(self, *args, **options):
        self.reset_prefix_cache()
        return generate(self, *args, **options)

    monkeypatch.setattr(LRUCacheWorkerLoRAManager, "add_adapter", add_adapter)
    monkeypatch.setattr(LLM, "generate", generate_anew)


@mutant("lora-same-id-stale", "changed", only="test_same_id")
def engine_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken("lora-adapter-never-delivered", only="test_engine_has_the_adapter[base_only")
def base_only(model):
    from verl.utils.fsdp_utils import collect_lora_params

    yield from collect_lora_params(model, layered_summon=False, base_sync_done=False).items()


@broken("lora-adapter-never-delivered", only="test_engine_has_the_adapter[without_scaling-lora]")
def without_scaling(model):
    scaled = [module.scaling for module in model.modules() if hasattr(module, "lora_A")]
    for scaling in scaled:
        scaling["default"] /= 2
    yield from merged_weights(model)
    for scaling in scaled:
        scaling["default"] *= 2


@broken("lora-adapter-never-delivered", only="test_engine_has_the_adapter[saved_modules_of_the_base")
def saved_modules_of_the_base(model):
    saved = {name: module.original_module for name, module in _wrappers(model)}
    for name, tensor in merged_weights(model):
        module = saved.get(name.removesuffix(".weight"))
        yield name, module.weight.detach() if module else tensor


@broken("lora-adapter-never-delivered", only="test_next_update")
def first_adapter_for_ever(model, first=[]):  # noqa: B006 - kept on purpose
    first[:] = first or [(name, tensor.clone()) for name, tensor in merged_weights(model)]
    yield from first


@broken("lora-adapter-never-delivered", only="test_model_is_left")
def merged_and_taken_back(model):
    """As TRL does."""
    sent = list(merged_weights(model))
    model.merge_adapter()
    yield from sent
    model.unmerge_adapter()


@broken("lora-adapter-never-delivered", only="test_model_is_left")
def left_merged(model):
    sent = list(merged_weights(model))
    model.merge_adapter()
    yield from sent


@broken("lora-adapter-never-delivered", only="test_model_is_left")
def tied_head_left_out(model):
    yield from ((name, tensor) for name, tensor in merged_weights(model) if name != "lm_head.weight")


def _wrappers(model):
    from peft.utils import ModulesToSaveWrapper

    return [(n, m) for n, m in model.get_base_model().named_modules() if isinstance(m, ModulesToSaveWrapper)]


@mutant("lora-adapter-never-delivered", "absent")
def trainer_sends_the_merged_weights(monkeypatch):
    from verl.utils import fsdp_utils

    monkeypatch.setattr(fsdp_utils, "collect_lora_params", lambda policy, **options: dict(merged_weights(policy)))


@mutant("lora-adapter-never-delivered", "changed")
def trainer_fails_otherwise(monkeypatch):
    from verl.utils import fsdp_utils

    monkeypatch.setattr(fsdp_utils, "collect_lora_params", failing(KeyError("base_model.model")))


@broken("nan-step-exclamation-marks", only="test_a_bad_gradient")
def stepped_all_the_same(optimizer, max_norm):
    norm = _clipped(optimizer, max_norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm


@broken("nan-step-exclamation-marks", only="test_engine_keeps")
def bad_gradients_are_zero(optimizer, max_norm):
    """The step is made with what is left, and decays the weights."""
    import torch

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            torch.nan_to_num_(parameter.grad, 0, 0, 0)
        group["weight_decay"] = 1.0
    return stepped_all_the_same(optimizer, max_norm)


@broken("nan-step-exclamation-marks", only="test_a_bad_gradient")
def step_of_zero(optimizer, max_norm):
    norm = _clipped(optimizer, max_norm)
    if norm != norm or norm == float("inf"):
        optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    optimizer.zero_grad()
    return norm


@broken("nan-step-exclamation-marks", only="test_a_bad_gradient")
def nan_but_not_infinity(optimizer, max_norm):
    norm = _clipped(optimizer, max_norm)
    if norm == norm:
        optimizer.step()
    optimizer.zero_grad()
    return norm


@broken("nan-step-exclamation-marks", only="test_a_bad_gradient")
def each_gradient_by_itself(optimizer, max_norm):
    """Finite numbers whose norm is not."""
    gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
    if all(gradient.isfinite().all() for gradient in gradients):
        return stepped_all_the_same(optimizer, max_norm)
    optimizer.zero_grad()
    return float("nan")


@broken("nan-step-exclamation-marks", only="test_a_bad_gradient")
def bad_gradients_are_kept(optimizer, max_norm):
    norm = _clipped(optimizer, max_norm)
    if norm == norm and norm != float("inf"):
        optimizer.step()
        optimizer.zero_grad()
    return norm


@broken("nan-step-exclamation-marks", only="test_a_good_step")
def norm_after_clipping(optimizer, max_norm):
    return min(step_if_finite(optimizer, max_norm), max_norm)


@broken("nan-step-exclamation-marks", only="test_a_good_step")
def not_clipped(optimizer, max_norm):
    return step_if_finite(optimizer, float("inf"))


@broken("nan-step-exclamation-marks", only="test_a_good_step")
def good_gradients_are_kept(optimizer, max_norm):
    norm = _clipped(optimizer, max_norm)
    optimizer.step()
    return norm


def _clipped(optimizer, max_norm):
    import torch

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm).item()


@mutant("nan-step-exclamation-marks", "absent")
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


@mutant("nan-step-exclamation-marks", "changed", only="test_step")
def clipping_raises(monkeypatch):
    import functools

    import torch

    strict = functools.partial(torch.nn.utils.clip_grad_norm_, error_if_nonfinite=True)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", strict)


@broken("trl-colocate-load-weights")
def without_the_tied_head(llm, weights):
    reload_by_worker(llm, weights)
    llm.reset_prefix_cache()


@broken("trl-colocate-load-weights")
def nothing_is_sent(llm, weights):
    llm.reset_prefix_cache()


@broken("trl-colocate-load-weights")
def first_sync_only(llm, weights):
    if not hasattr(llm, "was_sent"):
        llm.was_sent = True
        reload_weights(llm, weights)


@broken("trl-colocate-load-weights")
def half_a_sync(llm, weights):
    reload_weights(llm, ((name, tensor) for name, tensor in weights if not name.endswith("o_proj.weight")))


@mutant("trl-colocate-load-weights", "absent")
def sync_takes_the_weights(monkeypatch):
    """TRL sends them as it should, and a sync of its names brings the tied head, too."""
    monkeypatch.setattr(
        "trl.generation.vllm_generation.VLLMGeneration.sync_weights",
        lambda self: reload_weights(self.llm, self.model.named_parameters()),
    )
    monkeypatch.setattr(f"{SCENARIOS}.test_trl_colocate_load_weights.reload_by_worker", reload_weights)


@mutant("trl-colocate-load-weights", "changed", only="test_sync_as_released")
def sync_fails_otherwise(monkeypatch):
    monkeypatch.setattr(
        "trl.generation.vllm_generation.VLLMGeneration.sync_weights",
        failing(RuntimeError("The size of tensor a (384) must match the size of tensor b (128)")),
    )
