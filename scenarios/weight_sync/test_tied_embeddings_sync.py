"""A tied head is no parameter of its own, is not sent, and stays old; yet the engine's tensors equal the model's."""

from __future__ import annotations

import pytest

from pytest_rlregress.remedies.rollout import reload_by_worker
from pytest_rlregress.scenarios.weight_sync.policies import scored_off, tolerance

CPU = pytest.mark.hw("cpu")  # where vLLM computes logits with a packed copy of the head
ENGINE = pytest.mark.needs("vllm-engine", "transformers")


def check_tensors(engine, model):
    """What a checksum of the engine's parameters compares: embedding and head have the model's values."""

    def equal(served):
        wanted, rows = model.model.embed_tokens.weight, model.config.vocab_size
        return all(one.weight[:rows].cpu().equal(wanted) for one in (served.model.embed_tokens, served.lm_head))

    assert engine.llm.apply_model(equal) == [True], "embedding and head did not arrive"


def check_logprobs(engine, model):
    off = scored_off(engine, model)
    assert off <= tolerance(model), f"silent: {off:.2g} nats a token from the new weights, its tensors equal theirs"


@CPU
@ENGINE
@pytest.mark.reproduces("tied-embeddings-sync")
def test_named_parameters(engine, new):
    reload_by_worker(engine.llm, new.named_parameters())
    check_tensors(engine, new)
    check_logprobs(engine, new)


@ENGINE
@pytest.mark.guards("tied-embeddings-sync")
def test_every_update_arrives(engine, subject, old, new):
    for model in (new, old, new):
        reload_by_worker(engine.llm, subject(model))
        check_tensors(engine, model)
        check_logprobs(engine, model)


@ENGINE
@pytest.mark.guards("tied-embeddings-sync")
def test_update_after_an_update_arrives(engine, subject, new, synced):
    """Random weights are in the engine, and each tensor is compared."""

    def sync(llm, weights):
        reload_by_worker(llm, subject(new))
        llm.reset_prefix_cache()

    synced(engine, new, sync)


def small(tied):
    """A model with a head, tied or not, a parameter that is not trained, and buffers, saved and not."""
    import torch

    model = torch.nn.Module()
    model.embed_tokens, model.lm_head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4)
    if tied:
        model.lm_head.weight = model.embed_tokens.weight
    model.embed_tokens.weight.requires_grad_(False)
    model.register_buffer("saved", torch.zeros(1))
    model.register_buffer("frequencies", torch.zeros(1), persistent=False)
    return model


@pytest.mark.guards("tied-embeddings-sync")
@pytest.mark.parametrize("tied", [True, False])
def test_each_name_once_with_the_models_own_storage(subject, tied):
    model = small(tied)
    sent = list(subject(model))
    assert [name for name, _ in sent] == ["embed_tokens.weight", "lm_head.weight", "lm_head.bias"]
    for name, tensor in sent:
        parameter = model.get_parameter(name)
        assert tensor.data_ptr() == parameter.data_ptr(), f"{name} is a copy"
        assert not tensor.requires_grad
        assert tensor.equal(parameter)
    assert [parameter.requires_grad for parameter in model.parameters()] == (
        [False, True] if tied else [False, True, True]
    )
