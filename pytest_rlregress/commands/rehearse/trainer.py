"""Around TRL's trainer in a rehearsal: what it is made of, and how it trains and goes on from its own checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.rehearse import events, prompts, reward_trial, small_model
from pytest_rlregress.fixtures import trl_on_cpu
from pytest_rlregress.fixtures.loopback import reserved_port


def prepare(given: dict[str, Any]) -> Any:
    """Make small what a ``GRPOTrainer`` is made of; return the whole data set, None if there is no such thing.

    ``given`` is its arguments by name, and is changed.

    The reward functions are tried here, before an engine runs in this process.
    """
    from trl import GRPOConfig

    if isinstance(given.get("model"), str):
        name = given["model"]
        given["model"] = small_model.find(name)
        if given.get("args") is None:  # as TRL does
            given["args"] = GRPOConfig(f"{name.rpartition('/')[2]}-GRPO")
    config = given.get("args")
    if given.get("quantization_config") is not None:
        given["quantization_config"] = None
        events.note_unrehearsed("quantized weights", "they need a GPU")
    if config is None:
        return None
    config.model_init_kwargs = small_model.change_options(dict(config.model_init_kwargs or {}))
    _limit_context(given["model"], config)
    whole = given.get("train_dataset")
    if whole is not None:
        wanted = config.max_steps * max(1, config.generation_batch_size // config.num_generations)
        given["train_dataset"] = prompts.select_rows(whole, wanted)
    evaluated = given.get("eval_dataset")
    if evaluated is not None and hasattr(evaluated, "select"):
        given["eval_dataset"] = evaluated.select(range(min(len(evaluated), 2)))
    reward_trial.run(given.get("reward_funcs"), given.get("train_dataset"), config.num_generations, whole)
    return whole


def _limit_context(model: Any, config: Any) -> None:
    """Give the engine no more context than the model has."""
    from transformers import AutoConfig

    loaded = AutoConfig.from_pretrained(model) if isinstance(model, str) else model.config
    most = getattr(loaded.get_text_config(), "max_position_embeddings", None)
    if most and config.use_vllm and (config.vllm_max_model_length or 0) > most:
        config.vllm_max_model_length = most


@contextmanager
def engine_on_cpu(given: dict[str, Any]) -> Iterator[None]:
    """Let vLLM's engine start on a CPU while a trainer is made, in float32, eager, with a small cache."""
    import torch

    config = given.get("args")
    begun = time.monotonic()
    if torch.cuda.is_available() or config is None or not config.use_vllm:
        yield
    else:
        torch.compiler.set_stance("force_eager")
        torch.set_num_threads(1)
        for line in trl_on_cpu.STAND_INS["colocate"]:
            events.note_change("engine", "vLLM's own", line, "vLLM runs on a CPU")
        with reserved_port() as port, trl_on_cpu.while_built("colocate"):
            os.environ.setdefault("MASTER_PORT", str(port))  # the trainer keeps what it finds
            yield
    events.write("time", what="the trainer and its engine started", seconds=time.monotonic() - begun)


def complete(trainer: Any, whole: Any) -> None:
    """Let the engine of a trainer that was made take new weights on a CPU, and look at the prompts of its data."""
    import torch

    if trainer.use_vllm and not torch.cuda.is_available():
        trl_on_cpu.take_weights(trainer, "colocate")
    if whole is not None:
        prompts.look_at(trainer, whole)


def train(trainer: Any, train_as_released: Callable[..., Any]) -> Any:
    """Train as the trainer does, watched; then go on from the checkpoint that it saved, for one step."""
    from pytest_rlregress.commands.rehearse import resume
    from pytest_rlregress.commands.rehearse.watch import RehearsalRecorder

    _keep_saves_inside()
    recorder = RehearsalRecorder(trainer)
    recorder.observe()
    events.write("configuration", values=trainer.args.to_dict())
    begun = time.monotonic()
    result = train_as_released(trainer)
    events.write("trained", steps=trainer.state.global_step, seconds=time.monotonic() - begun)
    resume.check_saved(trainer, resume.find_checkpoint(trainer), "checkpoint")
    resume.go_on(trainer, train_as_released, recorder)
    return result


def find_place(folder: Any) -> Any:
    """Return a folder to save in: the one that a script names if it is in the rehearsal's, else one in that."""
    inside = events.folder().resolve()
    asked = Path(folder or inside).resolve()
    if inside in (asked, *asked.parents):
        return folder
    target = inside / "saved" / asked.name
    events.note_change(f"saved to {folder}", str(asked), str(target), "your folder stays as it is")
    return str(target)


def _keep_saves_inside() -> None:
    """Have models and tokenizers that a script saves by itself be saved in the rehearsal's folder."""
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    def redirect(owner: Any) -> None:
        save = owner.save_pretrained

        def save_inside(self: Any, save_directory: Any, *arguments: Any, **named: Any) -> Any:
            return save(self, find_place(save_directory), *arguments, **named)

        owner.save_pretrained = save_inside

    for owner in (PreTrainedModel, PreTrainedTokenizerBase):
        redirect(owner)
