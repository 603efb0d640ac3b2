"""verl's saving and resuming: its trainer's own methods and its FSDP checkpoint manager, on a tiny model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_rlregress.fixtures.tiny_model import TinyModel
from pytest_rlregress.stack.lazy import torch

ROWS = 100  # of the data set: many steps


class VerlRun:
    """What a run of verl's trainer has of a checkpoint: model and optimiser sharded by FSDP2, data loader, step."""

    def __init__(self, folder: Path, tiny_model: TinyModel, ranks: int, keep: int | None) -> None:
        from omegaconf import OmegaConf
        from torchdata.stateful_dataloader import StatefulDataLoader

        trainer = {
            "default_local_dir": str(folder),
            "default_hdfs_dir": None,
            "del_local_ckpt_after_load": False,
            "resume_from_path": None,
            "resume_mode": "auto",
            "max_actor_ckpt_to_keep": keep,
        }
        self.config = OmegaConf.create({"trainer": trainer, "actor_rollout_ref": {"actor": {"checkpoint": {}}}})
        self._methods, manager = _verl()
        self.actor = _checkpoint_manager(manager, tiny_model, ranks)
        self._trainer = SimpleNamespace(
            config=self.config,
            actor_rollout_wg=self.actor,
            use_critic=False,
            train_dataloader=StatefulDataLoader(range(ROWS)),
            trainer_mode="sync",
            global_steps=0,
            checkpoint_callback=SimpleNamespace(on_save=lambda **saved: None),
        )

    def train(self, step: int) -> list[Any]:
        """Take a step of the optimiser, save a checkpoint under the number ``step``, return the weights."""
        for parameter in self.actor.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.actor.optimizer.step()
        self._trainer.global_steps = step
        self._methods._save_checkpoint(self._trainer)
        return self.weights()

    def resume(self, path: str | None = None) -> int:
        """Load as at the start of a run; return the step that the run goes on from.

        Args:
            path: With ``resume_mode=resume_path``; without, verl looks for the newest itself (``auto``).
        """
        if path is not None:
            self.config.trainer.update(resume_mode="resume_path", resume_from_path=path)
        self._methods._load_checkpoint(self._trainer)
        return int(self._trainer.global_steps)

    def weights(self) -> list[Any]:
        """Copies of the parameters that this rank holds."""
        return [parameter.detach().to_local().clone() for parameter in self.actor.model.parameters()]


@contextmanager
def verl_run(
    folder: Path, tiny_model: TinyModel, rank: int = 0, ranks: int = 1, keep: int | None = None
) -> Iterator[VerlRun]:
    """A run as one of its ranks sees it; the others exist in torch's group of processes only.

    Nothing that is saved or loaded passes between ranks: each has files of its own.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield VerlRun(folder, tiny_model, ranks, keep)
    finally:
        dist.destroy_process_group()


def _checkpoint_manager(manager: Any, tiny_model: TinyModel, ranks: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = tiny_model.model()
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    tokenizer = tiny_model.tokenizer()  # verl before 0.6 saves no checkpoint without one
    return manager(model=model, optimizer=optimizer, lr_scheduler=schedule, processing_class=tokenizer)


def _verl() -> tuple[Any, Any]:
    """verl's class of the trainer and that of the checkpoint manager."""
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    try:
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer  # verl 0.8 on
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("verl."):
            raise
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer as PPOTrainer
    return PPOTrainer, FSDPCheckpointManager
