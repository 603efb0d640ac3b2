from importlib import import_module

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures import verl_on_cpu
from pytest_rlregress.scenarios.memory.fsdp_cpu_offload_lora.offloaded import (
    build_on_meta,
    give_buffers,
    one_rank,
    put_on_the_device,
    shard,
    take_back_to_the_host,
    take_step,
    verl_engine,
)
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.isolated
CPU = pytest.mark.hw("cpu")
ENGINE = pytest.mark.needs("verl.plugin:platform", "verl.workers.engine.fsdp:transformer_impl")
GPU = pytest.mark.hw(capability=">=8.0")
# LoRA has no part in it.
LORA = pytest.mark.parametrize("lora", [True, False], ids=["lora", "all-weights"])


@CPU
@pytest.mark.reproduces("fsdp-cpu-offload-lora", fidelity="stand-in")
@LORA
def test_offloaded_parameters_of_another_device(tiny_qwen, lora):
    from torch.distributed.fsdp import CPUOffloadPolicy

    with one_rank("cpu") as mesh:
        model = shard(build_on_meta(tiny_qwen, lora), mesh, CPUOffloadPolicy(pin_memory=False))
        with act():
            take_back_to_the_host(model)
            model.state_dict()


@GPU
@pytest.mark.reproduces("fsdp-cpu-offload-lora")
@LORA
def test_offload_of_a_model_on_gpu(tiny_qwen, lora):
    from torch.distributed.fsdp import CPUOffloadPolicy

    with one_rank("cuda") as mesh:  # as prime-rl set a model up: sharded on meta, then given memory
        model = shard(build_on_meta(tiny_qwen, lora), mesh, CPUOffloadPolicy())
        with act():
            model.to_empty(device="cuda")
            model.state_dict()


@pytest.fixture
def verl_of_one_rank(tiny_qwen, monkeypatch):
    """``verl_of_one_rank(lora)``: verl's engine, whose moves to the GPU go to meta."""
    modules = {"VERL_USE_EXTERNAL_MODULES": ",".join(verl_on_cpu.MODULES)}
    rank = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    for name, value in {**verl_on_cpu.ENVIRONMENT, **modules, **rank}.items():
        monkeypatch.setenv(name, value)
    verl_on_cpu.check_padding()
    import_module(verl_on_cpu.MODULES[0])
    from verl.workers.engine.fsdp import transformer_impl

    monkeypatch.setattr(transformer_impl, "load_fsdp_model_to_gpu", put_on_the_device)
    with one_rank("cpu"):
        yield lambda lora: verl_engine(tiny_qwen, lora)


@CPU
@pytest.mark.reproduces("fsdp-cpu-offload-lora", fidelity="stand-in", expected="absent")
@ENGINE
@pytest.mark.parametrize("use", ["save", "sync"])
@LORA
def test_verl_engine(verl_of_one_rank, tmp_path, use, lora):
    engine = verl_of_one_rank(lora)
    with act():
        if use == "save":
            engine.save_checkpoint(str(tmp_path))
        else:
            dict(engine.get_per_tensor_param()[0])


def check_step(tiny_qwen, lora, mesh, policy):
    """Train an offloaded model that was left on the CPU: it must move as the plain model does."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    torch.manual_seed(0)
    plain = build_on_meta(tiny_qwen, lora).to_empty(device="cpu")
    for name, parameter in plain.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.02)
    weights = {name: one.clone() for name, one in plain.state_dict().items()}
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    buffers = dict(tiny_qwen.model().named_buffers())
    model = shard(build_on_meta(tiny_qwen, lora), mesh, policy)
    with act():
        model.to_empty(device="cpu")
        set_model_state_dict(model, dict(weights), options=options)  # which changes the dict
        give_buffers(model, buffers, mesh.device_type)
        found = take_step(model, mesh.device_type)
    plain.to(mesh.device_type)
    give_buffers(plain, buffers, mesh.device_type)
    expected = take_step(plain, mesh.device_type)
    torch.testing.assert_close(found, expected)
    moved = {name for name, one in found.items() if not torch.equal(one, weights[name])}
    assert moved
    assert not lora or all("lora_" in name for name in moved)


@CPU
@pytest.mark.guards("fsdp-cpu-offload-lora", fidelity="stand-in")
@pytest.mark.needs("torch", "peft")
@LORA
def test_offloaded_model_left_on_the_cpu(tiny_qwen, lora):
    from torch.distributed.fsdp import CPUOffloadPolicy

    with one_rank("cpu") as mesh, act():
        check_step(tiny_qwen, lora, mesh, CPUOffloadPolicy(pin_memory=False))


@GPU
@pytest.mark.guards("fsdp-cpu-offload-lora")
@pytest.mark.needs("torch", "peft")
@LORA
def test_offloaded_model_left_on_the_cpu_beside_a_gpu(tiny_qwen, lora):
    from torch.distributed.fsdp import CPUOffloadPolicy

    with one_rank("cuda") as mesh, act():
        check_step(tiny_qwen, lora, mesh, CPUOffloadPolicy())


@CPU
@pytest.mark.guards("fsdp-cpu-offload-lora", fidelity="stand-in")
@ENGINE
def test_verl_engine_sends_its_weights(verl_of_one_rank, tiny_qwen):
    engine = verl_of_one_rank(lora=False)
    with act():
        sent = {name: tensor.float() for name, tensor in engine.get_per_tensor_param()[0]}
    expected = tiny_qwen.model().state_dict()
    assert sent.keys() == expected.keys()
    torch.testing.assert_close(sent, dict(expected))
