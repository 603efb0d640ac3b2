"""FSDP's CPU offload takes parameters put on the GPU back to host memory, and nobody can look at them any more."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

GPU = pytest.mark.hw(capability=">=8.0")
LORA = pytest.mark.parametrize("lora", [True, False], ids=["lora", "all-weights"])  # it has no part in it


@contextmanager
def one_rank(device):
    """A mesh of this process alone: no port is opened."""
    import torch.distributed as dist

    dist.init_process_group("gloo" if device == "cpu" else "nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.device_mesh.init_device_mesh(device, (1,))
    finally:
        dist.destroy_process_group()


def lora_model(model, lora=True):
    """Qwen 2 in eval mode, as ``from_pretrained`` gives it; LoRA's B is drawn too, so that both of its halves move."""
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(model, adapters) if lora else model


def shard(model, mesh, policy):
    from torch.distributed.fsdp import fully_shard

    for name, module in list(model.named_modules()):
        if name.endswith(("layers.0", "layers.1")):
            fully_shard(module, mesh=mesh, offload_policy=policy)
    return fully_shard(model, mesh=mesh, offload_policy=policy)


def on_meta(tiny_qwen):
    import torch
    from transformers import AutoConfig, Qwen2ForCausalLM

    with torch.device("meta"):
        return Qwen2ForCausalLM(AutoConfig.from_pretrained(tiny_qwen.directory))


def loss_of(model):
    import torch

    ids = torch.arange(100, 228, device=next(model.parameters()).device).view(2, 64)
    return model(input_ids=ids, labels=ids, use_cache=False).loss


@pytest.mark.isolated
@pytest.mark.reproduces("fsdp-cpu-offload-lora", fidelity="stand-in")
@LORA
def test_offloaded_parameters_of_another_device(tiny_qwen, lora):
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy

    with one_rank("cpu") as mesh:
        # The meta device stands for the GPU. Pinning host memory takes a GPU as well: what FSDP does to pin it,
        # FSDPParam.reset_sharded_param, is written out here.
        model = shard(lora_model(on_meta(tiny_qwen), lora), mesh, CPUOffloadPolicy(pin_memory=False))
        for parameter in model.parameters():
            parameter._local_tensor = torch.zeros_like(parameter._local_tensor, device="cpu")
        model.state_dict()


@GPU
@pytest.mark.isolated
@pytest.mark.reproduces("fsdp-cpu-offload-lora")
@LORA
def test_offload_of_a_model_on_gpu(tiny_qwen, lora):
    from torch.distributed.fsdp import CPUOffloadPolicy

    with one_rank("cuda") as mesh:  # as prime-rl sets a model up: sharded on meta, then given memory, then loaded
        model = shard(lora_model(on_meta(tiny_qwen), lora), mesh, CPUOffloadPolicy())
        model.to_empty(device="cuda")
        model.state_dict()


def backward(model):
    """The gradients of one backward pass, and the bytes that forward kept for it."""
    import torch

    weights = {one.untyped_storage()._cdata for one in model.parameters()}
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of(model)
    loss.backward()
    saved = sum(one.untyped_storage().nbytes() for key, one in kept.items() if key not in weights)
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}, saved


@pytest.mark.guards("fsdp-cpu-offload-lora")
def test_checkpointing_keeps_less_and_changes_nothing(tiny_qwen, subject):
    import torch

    torch.manual_seed(0)
    model = lora_model(tiny_qwen.model())
    plain, before = backward(model)
    plain = {name: one.clone() for name, one in plain.items()}
    model.zero_grad()
    subject(model)
    checkpointed, after = backward(model)
    torch.testing.assert_close(checkpointed, plain)
    assert set(checkpointed) == {name for name, _ in model.named_parameters() if "lora_" in name}
    layer = 4 * 128 * (8 * 128 + 4 * 256)  # bytes kept in float32 for 128 tokens of hidden size 128, 256 in the MLP
    assert before - after > layer, f"{after} of {before} bytes are still kept"


@pytest.mark.guards("fsdp-cpu-offload-lora")
def test_a_model_that_cannot_be_checkpointed(tiny_qwen, subject):
    model = tiny_qwen.model()
    model.supports_gradient_checkpointing = False
    with pytest.raises(ValueError, match="checkpointing"):  # of gradients; of activations from transformers 5.23 on
        subject(model)


def check_trains(model, mesh, subject):
    """A step on a sharded model that is not offloaded: LoRA moves, nothing else does, and all can be looked at."""
    import torch
    from torch.distributed.fsdp import OffloadPolicy

    subject(model)
    shard(model, mesh, OffloadPolicy())
    before = {name: one.full_tensor().clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=1e-3)
    loss_of(model).backward()
    optimizer.step()
    after = {name: one.full_tensor() for name, one in model.state_dict().items()}
    moved = {name for name, one in after.items() if not torch.equal(one, before[name])}
    assert moved == {name for name in before if "lora_" in name}


@pytest.mark.isolated
@pytest.mark.guards("fsdp-cpu-offload-lora")
def test_lora_trains_without_offload(tiny_qwen, subject):
    with one_rank("cpu") as mesh:
        check_trains(lora_model(tiny_qwen.model()), mesh, subject)


@GPU
@pytest.mark.isolated
@pytest.mark.guards("fsdp-cpu-offload-lora")
def test_lora_trains_without_offload_on_gpu(tiny_qwen, subject):
    with one_rank("cuda") as mesh:
        check_trains(lora_model(tiny_qwen.model()).to("cuda"), mesh, subject)
