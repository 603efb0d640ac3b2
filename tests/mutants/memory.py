"""Mutants of scenarios/memory."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.memory import (
    engine_memory_share,
    predict_training_memory,
    without_expandable_segments,
)

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@broken("gpu-memory-utilization", only="test_any_trainer")
def share_of_what_is_free(total_bytes, reserved_bytes):
    engine_memory_share(total_bytes, reserved_bytes)
    return 0.5


@broken("gpu-memory-utilization", only="test_any_trainer")
def rounded_share(total_bytes, reserved_bytes):
    return round(engine_memory_share(total_bytes, reserved_bytes) + 0.005, 2)


@broken("gpu-memory-utilization", only="test_any_trainer")
def share_in_decimal_gigabytes(total_bytes, reserved_bytes):
    return engine_memory_share(total_bytes, reserved_bytes * 1_000**3 // 1_024**3)


@broken("gpu-memory-utilization", only="test_documented_trainer")
def all_that_is_left(total_bytes, reserved_bytes):
    return (total_bytes - reserved_bytes) / total_bytes


@mutant("gpu-memory-utilization", "absent", only="test_default_beside_a_trainer")
def takes_what_is_free(monkeypatch):
    from vllm.v1.worker import utils

    def request_memory(found, cache_config):
        return min(found.free_memory, int(found.total_memory * cache_config.gpu_memory_utilization))

    monkeypatch.setattr(utils, "request_memory", request_memory)


@mutant("gpu-memory-utilization", "absent", only="test_co_tenant")
def profiles_by_its_own_memory(monkeypatch):
    from vllm.v1.worker import gpu_worker

    monkeypatch.setattr(gpu_worker, "maybe_rocm_profiling_fallback", lambda result: 0)


@mutant("gpu-memory-utilization", "changed", only="test_default_beside_a_trainer")
def refuses_every_share(monkeypatch):
    from vllm import config

    def cache_config(**settings):
        raise ValueError(f"gpu_memory_utilization is gone: {settings}")

    monkeypatch.setattr(config, "CacheConfig", cache_config)


@broken("trainer-engine-oom", only="-7b-lora-checkpointed")
def loss_takes_nothing(**sizes):
    return predict_training_memory(**{**sizes, "vocab_size": 0})


@broken("trainer-engine-oom", only="-0.5b-checkpointed")
def no_optimizer(**sizes):
    return predict_training_memory(**{**sizes, "trainable": 0})


@broken("trainer-engine-oom", only="test_documented_settings")
def never_checkpointed(**sizes):
    return predict_training_memory(**{**sizes, "checkpointing": False, "tokens": 4096})


@broken("trainer-engine-oom", only="test_documented_settings")
def weights_in_bfloat16_and_no_activations(**sizes):
    return 2 * sizes["parameters"]


@mutant("trainer-engine-oom", "absent", only="test_memory_runs_out")
def checkpoints_by_itself(monkeypatch):
    from pytest_rlregress.scenarios.memory.trainer_engine_oom import test_trainer_engine_oom as scenario

    train = scenario.train

    def checkpointed(model, tokens):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        train(model, tokens)

    monkeypatch.setattr(scenario, "train", checkpointed)


@mutant("trainer-engine-oom", "absent", only="test_nothing_counts")
def a_larger_card(monkeypatch):
    from pytest_rlregress.hardware import profiles
    from pytest_rlregress.scenarios.memory.trainer_engine_oom import test_trainer_engine_oom

    cards = profiles.load_profiles()
    monkeypatch.setattr(test_trainer_engine_oom, "load_profiles", lambda: {**cards, "h100": cards["h200"]})


@mutant("trainer-engine-oom", "changed")
def forward_fails_otherwise(monkeypatch):
    from transformers import Qwen2ForCausalLM

    def forward(model, *args, **keywords):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", forward)


@broken("expandable-segments", only="test_cleared_environment")
def only_the_old_name(environ):
    return {name: value for name, value in environ.items() if name != NAMES[0]}


@broken("expandable-segments", only="test_cleared_environment")
def both_unset(environ):
    return {name: value for name, value in environ.items() if name not in NAMES}


@broken("expandable-segments", only="test_cleared_environment")
def by_text(environ):
    return {name: value.replace("expandable_segments:True", "") for name, value in environ.items()}


@mutant("expandable-segments", "absent", only="test_refused")
def not_looked_at(monkeypatch):
    from vllm.config import VllmConfig

    monkeypatch.setattr(VllmConfig, "_verify_kv_transfer_compat", lambda config: None)


@mutant("expandable-segments", "absent", only="test_let_through")
def looked_at_as_torch_does(monkeypatch):
    import os

    from vllm.config import VllmConfig

    def verify(config):
        if config.kv_transfer_config and without_expandable_segments(os.environ) != dict(os.environ):
            raise ValueError("a KV connector is incompatible with expandable_segments")

    monkeypatch.setattr(VllmConfig, "_verify_kv_transfer_compat", verify)


@mutant("expandable-segments", "changed")
def connector_is_gone(monkeypatch):
    from vllm.config import VllmConfig

    def verify(config):
        raise ValueError("there is no KV connector of that name")

    monkeypatch.setattr(VllmConfig, "_verify_kv_transfer_compat", verify)
