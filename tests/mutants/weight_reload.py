"""Mutants of scenarios/rollout: new weights for a running engine."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext, suppress

from mutants import broken, mutant
from pytest_rlregress import remedies
from pytest_rlregress.remedies import rollout
from pytest_rlregress.remedies.rollout import reload_weights, reload_weights_by_server

RELOAD = "pytest_rlregress.scenarios.rollout.weight_reload_weight_name.test_weight_reload_weight_name"


@broken("weight-reload-weight-name", only="loaded_raw-sent")
def loaded_raw(llm, weights):
    llm.apply_model(lambda model: model.load_weights(weights))
    llm.reset_prefix_cache()


@broken("weight-reload-weight-name", only="test_update_of_experts")
@broken("weight-reload-weight-name", only="-not-sent")
def as_vllm_does(llm, weights):
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    llm.reset_prefix_cache()


@broken("weight-reload-weight-name", only="cache_kept-sent")
def cache_kept(llm, weights):
    llm.reset_prefix_cache, reset = lambda **options: True, llm.reset_prefix_cache
    reload_weights(llm, weights)
    llm.reset_prefix_cache = reset


@broken("weight-reload-weight-name", only="second_layer_kept-sent")
def second_layer_kept(llm, weights):
    reload_weights(llm, ((name, tensor) for name, tensor in weights if ".layers.1." not in name))


@broken("weight-reload-weight-name", only="first_update_only-sent")
def first_update_only(llm, weights):
    if not hasattr(llm, "updated"):
        llm.updated = True
        reload_weights(llm, weights)


@broken("weight-reload-weight-name", only="sinks_kept-gpt-oss")
def sinks_kept(llm, weights):
    reload_weights(llm, ((name, tensor) for name, tensor in weights if not name.endswith("sinks")))


@broken("weight-reload-weight-name", only="rounded_on_the_way-sent")
def rounded_on_the_way(llm, weights):
    reload_weights(llm, ((name, tensor.bfloat16()) for name, tensor in weights))


@mutant("weight-reload-weight-name", "regressed", only="test_update_arrives[server_cache_kept-float32]")
def server_cache_kept(monkeypatch):
    post = rollout._post
    monkeypatch.setattr(rollout, "_post", lambda url, body: "" if "cache" in url else post(url, body))


@mutant("weight-reload-weight-name", "regressed", only="test_update_while")
def server_resets_when_idle(monkeypatch):
    post = rollout._post
    monkeypatch.setattr(rollout, "_post", lambda url, body: post(url.partition("?")[0], body).replace("false", "true"))


@mutant("weight-reload-weight-name", "regressed", only="test_update_arrives[server_head_kept-float32]")
def server_head_kept(monkeypatch):
    import safetensors.torch

    save = safetensors.torch.save_file

    def save_file(tensors, path):
        save({name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, path)

    monkeypatch.setattr(safetensors.torch, "save_file", save_file)


@mutant("weight-reload-weight-name", "regressed", only="test_update_arrives[rounded_for_the_server-float32]")
def rounded_for_the_server(monkeypatch):
    def rounded(address, weights, folder=None):
        reload_weights_by_server(address, ((name, tensor.bfloat16()) for name, tensor in weights), folder)

    monkeypatch.setattr(remedies, "reload_weights_by_server", rounded)


@mutant("weight-reload-weight-name", "regressed", only="test_update_arrives[files_stay_behind-float32]")
def files_stay_behind(monkeypatch):
    monkeypatch.setattr(rollout.tempfile, "TemporaryDirectory", lambda dir: nullcontext(tempfile.mkdtemp(dir=dir)))


@mutant("weight-reload-weight-name", "regressed", only="test_update_arrives[another_folder-float32]")
def another_folder(monkeypatch):
    monkeypatch.setattr(
        remedies,
        "reload_weights_by_server",
        lambda address, weights, folder: reload_weights_by_server(address, weights),
    )


@mutant("weight-reload-weight-name", "regressed", only="test_refusals")
def server_may_refuse(monkeypatch):
    def reload(*args):
        with suppress(RuntimeError):
            reload_weights_by_server(*args)

    monkeypatch.setattr(remedies, "reload_weights_by_server", reload)


@mutant("weight-reload-weight-name", "absent", only="test_raw_load")
def raw_load_reloads(monkeypatch):
    """https://github.com/vllm-project/vllm/pull/42823"""
    from types import SimpleNamespace

    import torch
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
    from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

    load = Qwen2ForCausalLM.load_weights

    def load_weights(self, weights):
        initialize_layerwise_reload(self)
        loaded = load(self, weights)
        finalize_layerwise_reload(self, SimpleNamespace(dtype=torch.float32))
        return loaded

    monkeypatch.setattr(Qwen2ForCausalLM, "load_weights", load_weights)


@mutant("weight-reload-weight-name", "reproduced", only="expert_weights_are_no_parameters-raw-gpt-oss")
def expert_weights_are_no_parameters(monkeypatch):
    """As vLLM's Triton kernels for MXFP4 leave them on a GPU (fused_moe/oracle/mxfp4.py)."""

    def load_raw(engine, weights):
        def load(model):
            layers = [layer for layer in model.modules() if "w2_weight" in layer._parameters]
            kept = [layer._parameters.pop("w2_weight") for layer in layers]
            try:
                model.load_weights(iter(weights))
            finally:
                for layer, parameter in zip(layers, kept, strict=True):
                    layer._parameters["w2_weight"] = parameter

        engine.llm.apply_model(load)

    monkeypatch.setattr(f"{RELOAD}.load_raw", load_raw)


@mutant("weight-reload-weight-name", "changed", only="test_raw_load")
def raw_load_fails_otherwise(monkeypatch):
    wrong = [("no.such.weight", None)]
    monkeypatch.setattr(
        f"{RELOAD}.load_raw", lambda engine, weights: engine.llm.apply_model(lambda model: model.load_weights(wrong))
    )
