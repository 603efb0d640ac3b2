from mutants import broken, fails, replaces
from pytest_rlregress.stack.lazy import torch


@broken(only="loaded_raw-sent")
def loaded_raw(llm, weights):
    llm.apply_model(lambda model: model.load_weights(weights))
    llm.reset_prefix_cache()


@broken(only="test_update_of_experts")
def as_vllm_does(llm, weights):
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    llm.reset_prefix_cache()


@replaces("absent", "vllm.model_executor.models.qwen2.Qwen2ForCausalLM.load_weights", only="test_raw_load")
def raw_load_reloads(original, self, weights):
    """https://github.com/vllm-project/vllm/pull/42823"""
    from types import SimpleNamespace

    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    initialize_layerwise_reload(self)
    loaded = original(self, weights)
    finalize_layerwise_reload(self, SimpleNamespace(dtype=torch.float32))
    return loaded


@replaces("reproduced", ".test_weight_reload_weight_name.load_raw", only="expert_weights_are_no_parameters-raw-gpt-oss")
def expert_weights_are_no_parameters(engine, weights):
    """As vLLM's Triton kernels for MXFP4 leave them on a GPU (fused_moe/oracle/mxfp4.py)."""

    def load(model):
        layers = [layer for layer in model.modules() if "w2_weight" in layer._parameters]
        kept = [layer._parameters.pop("w2_weight") for layer in layers]
        try:
            model.load_weights(iter(weights))
        finally:
            for layer, parameter in zip(layers, kept, strict=True):
                layer._parameters["w2_weight"] = parameter

    engine.llm.apply_model(load)


replaces("changed", ".test_weight_reload_weight_name.load_raw", only="test_raw_load")(fails)
