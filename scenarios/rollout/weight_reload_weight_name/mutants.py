"""Broken remedies of weight-reload-weight-name, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant

RELOAD = "pytest_rlregress.scenarios.rollout.weight_reload_weight_name.test_weight_reload_weight_name"


@broken(only="loaded_raw-sent")
def loaded_raw(llm, weights):
    llm.apply_model(lambda model: model.load_weights(weights))
    llm.reset_prefix_cache()


@broken(only="test_update_of_experts")
def as_vllm_does(llm, weights):
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    llm.reset_prefix_cache()


@mutant("absent", only="test_raw_load")
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


@mutant("reproduced", only="expert_weights_are_no_parameters-raw-gpt-oss")
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


@mutant("changed", only="test_raw_load")
def raw_load_fails_otherwise(monkeypatch):
    wrong = [("no.such.weight", None)]
    monkeypatch.setattr(
        f"{RELOAD}.load_raw", lambda engine, weights: engine.llm.apply_model(lambda model: model.load_weights(wrong))
    )
