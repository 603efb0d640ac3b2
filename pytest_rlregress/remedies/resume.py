"""Remedies for runs that go on from a checkpoint: the newest whole one, whatever tracker files and names say."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from zipfile import is_zipfile

__all__ = ["latest_checkpoint", "remove_old_checkpoints"]

# verl's and those of transformers' Trainer, so TRL's
_NAME = re.compile(r"(?:global_step_|checkpoint-)(\d+)")
_SHARD = re.compile(r"(\w+)_world_size_(\d+)_rank_(\d+)\.pt")


def latest_checkpoint(folder: Path, ranks: int | None = None) -> Path | None:
    """Return the newest checkpoint of a run that can be resumed from, by its step's number.

    Args:
        folder: ``trainer.default_local_dir`` of verl, which writes ``global_step_9``, or ``output_dir`` of TRL and of
            transformers' Trainer, which write ``checkpoint-9``. Left as it is.
        ranks: How many processes the run will have: with verl's FSDP each reads the shard it wrote. None where there
            aren't shards, or the number stays as it was.

    Returns:
        Its absolute path, which a tracker file has no part in: for verl's ``trainer.resume_from_path`` with
        ``trainer.resume_mode=resume_path``, for ``Trainer.train(resume_from_checkpoint=…)``. One that was cut short
        while it was written is passed over. None where there is no checkpoint: a run that begins.

    Raises:
        ValueError: There are checkpoints and none is whole; the message says of each what is amiss. Or the newest whole
            one was saved by another number of processes.
    """
    found = _by_step(folder)
    amiss = {}
    for step in sorted(found, reverse=True):
        path = found[step]
        problem = _problem(path)
        if problem is None:
            saved_by = _world_sizes(path)
            if ranks is not None and saved_by and ranks not in saved_by:
                counts = " and ".join(map(str, sorted(saved_by)))
                raise ValueError(f"{path} was saved by {counts} processes, and {ranks} would read it")
            return path
        amiss[path.name] = problem
    if amiss:
        raise ValueError(f"{folder}: no checkpoint is whole: " + "; ".join(f"{n}: {p}" for n, p in amiss.items()))
    return None


def remove_old_checkpoints(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest whole checkpoints of a run, those of earlier processes too.

    Args:
        folder: As for ``latest_checkpoint``. What isn't a checkpoint is left as it is.
        keep: How many whole ones stay, at least 1. One that is not whole stays where it is newer than the oldest of
            these: it may be being written.

    Returns:
        The paths that were removed, oldest first.

    Raises:
        ValueError: ``keep`` is less than 1.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one checkpoint must stay")
    found = _by_step(folder)
    whole = [step for step in sorted(found) if _problem(found[step]) is None]
    if len(whole) < keep:
        return []
    old = [found[step] for step in sorted(found) if step < whole[-keep]]
    for path in old:
        shutil.rmtree(path)
    return old


def _by_step(folder: Path) -> dict[int, Path]:
    paths = folder.absolute().iterdir() if folder.is_dir() else ()
    return {int(name[1]): path for path in paths if (name := _NAME.fullmatch(path.name)) and path.is_dir()}


def _world_sizes(path: Path) -> set[int]:
    files = [*path.glob("actor/*.pt"), *path.glob("*.pt")]  # of verl's PPO and SFT trainers
    return {int(shard[2]) for file in files if (shard := _SHARD.fullmatch(file.name))}


def _problem(path: Path) -> str | None:
    """Find what is amiss with a checkpoint, in the order in which its parts are written; None if it is whole."""
    verl = path.name.startswith("global_step_")
    if verl and not any(path.glob("actor/*")) and not _world_sizes(path):
        return "no actor"
    last = ("data.pt", "data_0.pt") if verl else ("trainer_state.json",)  # the second by verl's SFT trainer
    if not any((path / name).is_file() for name in last):
        return f"no {last[0]}, which is written last"
    shards = defaultdict(set)
    for file in sorted(path.rglob("*")):
        if file.suffix in (".pt", ".pth", ".bin", ".safetensors", ".json") and not _readable(file):
            return f"{file.relative_to(path)} is cut short"
        if shard := _SHARD.fullmatch(file.name):
            shards[file.parent, shard[1], int(shard[2])].add(int(shard[3]))
    for (_, kind, world_size), there in shards.items():
        if missing := {*range(world_size)} - there:
            return f"no {kind} of rank {min(missing)} of {world_size}"
    return None


def _readable(file: Path) -> bool:
    """Return whether a file has its end: a zip's directory, safetensors' last tensor, JSON's last bracket."""
    if file.suffix == ".json":
        try:
            json.loads(file.read_bytes())
        except ValueError:
            return False
        return True
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "numpy"):
                return True
        except (SafetensorError, OSError):
            return False
    return is_zipfile(file)
