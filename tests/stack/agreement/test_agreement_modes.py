"""What a gap comes from in engines of other modes: log-probabilities after processing, another dtype, adapters."""

from __future__ import annotations

import pytest
from compared_engines import drawn, group, moved, started

pytestmark = [pytest.mark.needs("vllm-engine", "torch", "transformers"), pytest.mark.slow]


@pytest.fixture
def model(sharp_qwen):
    return sharp_qwen.model()


# An engine that reports log-probabilities of what it draws from.


@pytest.fixture(scope="module")
def processed_engine(sharp_qwen, progress):
    with started(sharp_qwen, progress, logprobs_mode="processed_logprobs") as engine:
        yield engine


@group("processed")
@pytest.mark.parametrize(
    ("sampling", "names"),
    [
        ({"temperature": 0.5}, []),
        ({"top_p": 0.8}, ["truncated-support"]),
        ({"temperature": 0.7, "top_k": 20}, ["truncated-support"]),
        ({"min_p": 0.01}, ["truncated-support"]),
        ({"repetition_penalty": 1.3}, ["truncated-support"]),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}, ["truncated-support"]),
    ],
    ids=str,
)
def test_names_truncated_support(processed_engine, model, agreement, sampling, names):
    compared = agreement(processed_engine, model, drawn(processed_engine, **sampling), **sampling)
    assert compared.agrees == (not names)
    assert compared.explain().names == names, str(compared.explain())


@group("processed")
def test_the_models_own_sampling_parameters(processed_engine, model, agreement):
    """The server takes them from generation_config.json where the client sends none."""
    model.generation_config.update(do_sample=True, temperature=0.7, top_k=20, top_p=0.8)
    compared = agreement(processed_engine, model, drawn(processed_engine, temperature=0.7, top_k=20, top_p=0.8))
    found = compared.explain()
    assert found.names == ["generation-config"], str(found)


@group("processed")
def test_names_an_unstated_temperature(processed_engine, model, agreement):
    found = agreement(processed_engine, model, drawn(processed_engine, temperature=0.6)).explain()
    assert found.names == ["other-temperature"], str(found)
    assert "are at temperature 0.6, not 1" in str(found)


# An engine in another dtype than the trainer. vLLM's bfloat16 on a CPU dies where the system does not allow AMX.


@group("half")
def test_names_a_different_dtype(sharp_qwen, model, progress, agreement):
    with started(sharp_qwen, progress, dtype="float16") as engine:
        found = agreement(engine, model, drawn(engine)).explain()
        assert found.names == ["float16"], str(found)
        found = agreement(engine, model, drawn(engine, temperature=0.5), temperature=0.5).explain()
        assert sorted(found.names) == ["before-temperature", "float16"], str(found)
        found = agreement(engine, moved(model), drawn(engine)).explain()
        assert found.names == ["weights"], str(found)
        assert agreement(engine, sharp_qwen.model("float16"), drawn(engine))


# An engine with adapters.


@pytest.fixture(scope="module")
def lora_engine(sharp_qwen, progress):
    with started(sharp_qwen, progress, enable_lora=True, max_loras=1, max_lora_rank=8) as engine:
        yield engine


@pytest.fixture
def adapted(model, tmp_path):
    """PeftModels of two versions of an adapter, each with the LoRARequest that vLLM wants for it."""
    import copy

    import torch
    from peft import LoraConfig, get_peft_model
    from vllm.lora.request import LoRARequest

    found = []
    for version in (1, 2):
        torch.manual_seed(version)
        config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.05)
        peft = get_peft_model(copy.deepcopy(model), config).eval()
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                parameter.data = 0.1 * torch.randn_like(parameter)
        folder = tmp_path / f"version-{version}"
        peft.save_pretrained(folder)
        identity = abs(hash(str(folder))) % 10**6 + 1  # vLLM keeps what it loaded under an id
        found.append((peft, LoRARequest(f"version-{version}", identity, str(folder))))
    return found


@group("lora")
def test_compares_adapters_with_their_own_weights(lora_engine, model, adapted, agreement):
    from dataclasses import replace

    from vllm.lora.request import LoRARequest

    (old, old_request), (new, new_request) = adapted
    assert agreement(lora_engine, new, drawn(replace(lora_engine, lora=new_request)), lora=new_request)
    merged = agreement(lora_engine, model, drawn(lora_engine))
    assert merged, merged.explain()

    def explained(trained, request):
        engine = replace(lora_engine, lora=request)
        before = [(p.requires_grad, p.sum().item()) for p in trained.parameters()]
        found = agreement(engine, trained, drawn(engine)).explain()
        assert [(p.requires_grad, p.sum().item()) for p in trained.parameters()] == before
        assert found.names == (["adapter"] if found.causes else []), str(found)
        return str(found)

    assert "the engine computes without the adapter 'default'" in explained(new, None)
    assert "the engine applies the adapter 'version-1', the model here has none" in explained(model, old_request)
    same_id = LoRARequest("version-2", old_request.lora_int_id, new_request.lora_path)
    drawn(replace(lora_engine, lora=old_request))
    assert "the engine's adapter 'version-2' is not the model's 'default'" in explained(new, same_id)
    assert explained(old, old_request).startswith("agrees")
