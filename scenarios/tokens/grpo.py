"""TRL's GRPOTrainer on the tiny Qwen, given completions as an engine samples them."""

import copy
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_rlregress.stack import InterfaceMissing, versions

PROMPT = [{"role": "user", "content": "How big is Lisbon?"}]


def trainer(
    directory: Path,
    tokenizer: Any,
    reward: Callable[..., Any],
    folder: Path,
    group: int,
    max_completion_length: int = 64,
    **others: Any,
) -> Any:
    """A GRPOTrainer on the CPU that leaves completions out of the loss which it holds for cut short.

    ``others`` are arguments of GRPOTrainer.
    """
    from datasets import Dataset
    from trl import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer  # trl's own __init__ hides why it can't be imported

    arguments = GRPOConfig(
        str(folder), use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=group,
        num_generations=group, max_completion_length=max_completion_length, mask_truncated_completions=True,
    )  # fmt: skip
    return GRPOTrainer(
        str(directory),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": PROMPT}] * group),
        processing_class=tokenizer,
        **others,
    )


def scored(trainer: Any, completions: Sequence[Sequence[int]], prompt: Any = None) -> dict[str, Any]:
    """Return the batch that the trainer makes of one group, whose completions an engine has sampled for its prompt.

    ``prompt`` is messages or text; without one it is ``PROMPT``.
    """
    single_turn = getattr(trainer, "_generate_single_turn", None)
    given = next(iter(inspect.signature(single_turn).parameters), "") if single_turn else ""
    if given not in ("prompt_ids", "prompts"):
        raise InterfaceMissing(
            f"gives GRPOTrainer what was sampled, which trl {versions().get('trl')} has no place for"
        )
    sampled = [list(ids) for ids in completions]
    if given == "prompt_ids":
        has_extra = "logprobs, extra_fields = self._generate_single_turn" in inspect.getsource(type(trainer))
        result: tuple[Any, ...] = (sampled, None, {}) if has_extra else (sampled, None)  # TRL 0.29 has three
        trainer._generate_single_turn = lambda *args, **kwargs: result
    else:  # the releases of 2025 tokenise the prompts there too
        if prompt is not None:
            raise InterfaceMissing(f"reads the prompt's ids, which trl {versions().get('trl')} makes while it samples")
        trainer._generate_single_turn = lambda *args, **kwargs: ([[5, 6] for _ in sampled], sampled, None, {})
    rows = [{"prompt": PROMPT if prompt is None else copy.deepcopy(prompt)} for _ in sampled]
    return trainer._generate_and_score_completions(rows)  # type: ignore[no-any-return]


def multiplied(trainer: Any, prompt: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """Of both rows that it makes of one prompt, and takes the loss of, the ids and the mask it multiplies by."""
    if getattr(trainer, "rollout_func", None) is not None and "env_mask" not in inspect.getsource(type(trainer)):
        raise InterfaceMissing(
            f"gives GRPOTrainer the mask of a rollout, which trl {versions().get('trl')} doesn't have"
        )
    batch = trainer._generate_and_score_completions([{"prompt": copy.deepcopy(prompt)} for _ in range(2)])
    trainer.compute_loss(trainer.model, batch)
    mask = batch["completion_mask"] * batch["tool_mask"]
    return list(zip(batch["completion_ids"].tolist(), mask.tolist(), strict=True))
