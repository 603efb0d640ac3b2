"""Mutants of scenarios/weight_sync."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.weight_sync import every_name, load_checked

SCENARIOS = "pytest_rlregress.scenarios.weight_sync"


def failing(error):
    def function(*args, **options):
        raise error

    return function


@broken("prefix-cache-stale-weights", only="test_every_update")
def nothing_is_reset(llm):
    pass


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


@broken("tied-embeddings-sync", only="arrives")
def each_parameter_once(model):
    yield from model.named_parameters()


@broken("tied-embeddings-sync", only="test_every_update")
def head_of_the_first_call(model, heads=[]):  # noqa: B006 - kept on purpose
    for name, tensor in every_name(model):
        if name == "lm_head.weight":
            heads.append(tensor.clone())
            tensor = heads[0]
        yield name, tensor


@broken("tied-embeddings-sync", only="test_each_name")
def buffers_too(model):
    yield from model.state_dict().items()


@broken("tied-embeddings-sync", only="test_each_name")
def a_copy_of_all(model):
    yield from ((name, tensor.clone()) for name, tensor in every_name(model))


@broken("tied-embeddings-sync", only="test_each_name")
def with_gradients(model):
    yield from model.named_parameters(remove_duplicate=False)


@broken("tied-embeddings-sync", only="test_each_name")
def head_named_twice(model):
    yield from every_name(model)
    yield "lm_head.weight", model.lm_head.weight.detach()


@broken("tied-embeddings-sync", only="test_each_name")
def what_is_trained_only(model):
    trained = {name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad}
    yield from ((name, tensor) for name, tensor in every_name(model) if name in trained)


@mutant("tied-embeddings-sync", "absent")
def head_is_packed_again(monkeypatch):
    from vllm import LLM

    call = LLM.collective_rpc

    def pack(model):
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)

    def collective_rpc(self, method, *args, **options):
        results = call(self, method, *args, **options)
        if method == "reload_weights":
            self.apply_model(pack)
        return results

    monkeypatch.setattr(LLM, "collective_rpc", collective_rpc)


@mutant("tied-embeddings-sync", "changed")
def loader_wants_the_head(monkeypatch):
    monkeypatch.setattr(
        f"{SCENARIOS}.test_tied_embeddings_sync.reload_by_worker", failing(ValueError("lm_head.weight is missing"))
    )
