from dataclasses import replace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.remedies.rollout import reload_by_worker
from pytest_rlregress.scenarios.weight_sync.policies import scored_off, tolerance
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.isolated(group="weight_sync lora")
PEFT = pytest.mark.needs("peft", "transformers")
NUMBER = 123  # verl's VLLM_LORA_INT_ID
KINDS = {
    "lora": {},
    "dora": {"use_dora": True},
    "with-norm": {"modules_to_save": ["model.norm"]},
    "with-mlp": {"modules_to_save": ["mlp"], "target_modules": ["q_proj", "v_proj"]},
    "with-bias": {"bias": "lora_only"},
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def engine(vllm_lora, sharp_qwen):
    """The engine with adapters, which gets its base weights before and after."""
    weights = sharp_qwen.model().state_dict()
    vllm_lora.load_weights(weights.items())
    yield vllm_lora
    vllm_lora.load_weights(weights.items())


@pytest.fixture
def policy(adapted, kind):
    """The model with an adapter of that kind, every trained parameter of which has moved."""
    policy, generator = adapted(1, **KINDS[kind]), torch.Generator().manual_seed(0)
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad and "lora_" not in name:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return policy


def state(policy):
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


def check_serves(engine, policy):
    off = scored_off(engine, policy)
    if not off <= tolerance(policy):
        silent(f"{off:.2g} nats a token from the policy with its adapter")


@PEFT
@pytest.mark.reproduces("lora-adapter-never-delivered")
def test_base_without_adapter(engine, adapted, tmp_path):
    """What verl's FSDP engine sends as long as it has not noted that the base was sent, and how its server asks."""
    from verl.utils.fsdp_utils import collect_lora_params
    from vllm.lora.request import LoRARequest

    policy = adapted(1)
    policy.save_pretrained(tmp_path)
    with act():
        reload_by_worker(engine.llm, collect_lora_params(policy, layered_summon=False, base_sync_done=False).items())
    loaded = NUMBER in engine.llm.llm_engine.list_loras()
    request = LoRARequest(str(NUMBER), NUMBER, str(tmp_path)) if loaded else None
    check_serves(replace(engine, lora=request), policy)


@PEFT
@EACH_KIND
@pytest.mark.guards("lora-adapter-never-delivered")
def test_engine_has_the_adapter(engine, subject, policy):
    reload_by_worker(engine.llm, subject(policy))
    check_serves(engine, policy)


@EACH_KIND
@pytest.mark.guards("lora-adapter-never-delivered")
@pytest.mark.needs("peft")
def test_merging_changes_nothing_of_the_model(subject, policy, sharp_qwen):
    """Bit by bit: to merge and to take it back rounds, and the base drifts from sync to sync."""
    policy.train()
    before = state(policy), {name: one.requires_grad for name, one in policy.named_parameters()}
    config = policy.get_base_model().config.to_dict()
    with act():
        sent = list(subject(policy))
    wanted = sharp_qwen.model().named_parameters(remove_duplicate=False)
    assert [(name, one.dtype) for name, one in sent] == [(name, one.dtype) for name, one in wanted]
    assert not any(tensor.requires_grad for _, tensor in sent)
    assert state(policy).keys() == before[0].keys()
    assert all(tensor.equal(before[0][name]) for name, tensor in state(policy).items()), "the model has changed"
    assert {name: one.requires_grad for name, one in policy.named_parameters()} == before[1]
    assert policy.get_base_model().config.to_dict() == config
    assert all(module.training for module in policy.modules())
