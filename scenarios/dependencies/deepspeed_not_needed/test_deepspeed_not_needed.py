import pytest

from pytest_rlregress.failures.act import act

pytestmark = pytest.mark.isolated  # imports here must be first imports


@pytest.mark.reproduces("deepspeed-not-needed")
def test_a_trainer_configured_for_it(tmp_path):
    from transformers import TrainingArguments

    zero = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}
    with act():
        TrainingArguments(output_dir=str(tmp_path), deepspeed=zero, use_cpu=True, report_to=[])


@pytest.mark.reproduces("deepspeed-not-needed")
def test_a_launcher_configured_for_it(monkeypatch):
    from accelerate import Accelerator

    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with act():
        Accelerator(cpu=True)


@pytest.mark.needs("verl-trainer")
@pytest.mark.guards("deepspeed-not-needed")
@pytest.mark.filterwarnings("ignore")
def test_fsdp_does_without(subject):
    with act(), subject("deepspeed") as attempts:
        import torch
        import transformers.trainer  # noqa: F401
        from accelerate import FullyShardedDataParallelPlugin
        from torch.distributed.fsdp import fully_shard
        from verl.workers.engine.fsdp import FSDPEngineWithLMHead

        FullyShardedDataParallelPlugin(fsdp_version=2)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        layer = fully_shard(torch.nn.Linear(4, 1), mesh=mesh)
        layer(torch.ones(2, 4)).sum().backward()
        torch.distributed.destroy_process_group()
    assert FSDPEngineWithLMHead
    assert attempts == []
