"""Models that FSDP2 shards over one process, and verl's engine around one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def one_rank(device: str) -> Iterator[Any]:
    """Yield a mesh of this process alone; no port is opened."""
    import torch.distributed as dist

    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.device_mesh.init_device_mesh(device, (1,))
    finally:
        dist.destroy_process_group()


def build_on_meta(tiny_qwen: Any, lora: bool) -> Any:
    """Return the model without memory, with LoRA or without.

    LoRA's B is drawn too, so that both halves move. The head isn't tied: to_empty would untie it.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, Qwen2ForCausalLM

    adapters = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(tiny_qwen.directory, tie_word_embeddings=False)
        model = Qwen2ForCausalLM(config)
        return get_peft_model(model, adapters) if lora else model


def shard(model: Any, mesh: Any, policy: Any) -> Any:
    """Shard a model's layers and the rest of it, as trainers do."""
    from torch.distributed.fsdp import fully_shard

    for name, module in list(model.named_modules()):
        if name.endswith(("layers.0", "layers.1")):
            fully_shard(module, mesh=mesh, offload_policy=policy)
    return fully_shard(model, mesh=mesh, offload_policy=policy)


def take_back_to_the_host(model: Any) -> None:
    """Do by hand what FSDP2's offload does to parameters that were put elsewhere, to pin them.

    Pinning takes a GPU (FSDPParam.reset_sharded_param); here the meta device stands for it.
    """
    import torch

    for parameter in model.parameters():
        parameter._local_tensor = torch.zeros_like(parameter._local_tensor, device="cpu")


def put_on_the_device(model: Any) -> None:
    """Do what ``model.to("cuda")`` does to an offloaded model; meta stands for the GPU."""
    model.to("meta")
    take_back_to_the_host(model)


def give_buffers(model: Any, buffers: Mapping[str, Any], device: str) -> None:
    """Put the rotary embedding's frequencies, which no state dict has, where the model computes."""
    for name, _ in list(model.named_buffers()):
        [values] = [values for own, values in buffers.items() if name.endswith(own)]
        module, _, last = name.rpartition(".")
        model.get_submodule(module).register_buffer(last, values.to(device), persistent=False)


def take_step(model: Any, device: str) -> dict[str, Any]:
    """Take a step of SGD on the model's own loss; return its state as plain tensors."""
    import torch

    ids = torch.arange(100, 228, device=device).view(2, 64)
    model.train()(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1).step()
    whole = {name: getattr(one, "full_tensor", one.clone)() for name, one in model.state_dict().items()}
    return {name: tensor.cpu() for name, tensor in whole.items()}


def verl_engine(tiny_qwen: Any, lora: bool) -> Any:
    """Return verl's engine with an offloaded model in float32.

    It takes a process group, and verl's platform on a CPU.
    """
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    floats = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
    engine = FSDPEngineWithLMHead(
        HFModelConfig(
            path=str(tiny_qwen.directory),
            override_config={"attn_implementation": "sdpa"},
            lora_rank=8 if lora else 0,
        ),
        FSDPEngineConfig(
            strategy="fsdp2",
            offload_policy=True,
            use_torch_compile=False,
            mixed_precision=floats,
        ),
        FSDPOptimizerConfig(lr=1e-3, total_training_steps=2),
        CheckpointConfig(),
    )
    engine.initialize()
    return engine
