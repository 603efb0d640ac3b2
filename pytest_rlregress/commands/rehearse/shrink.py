"""Which values of a ``GRPOConfig`` a rehearsal changes, and what isn't rehearsed because of it: pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

#: Tokens of a completion at most, and completions of a prompt.
COMPLETION = 16
GENERATIONS = 8
#: Prompts whose completions are one batch of rollouts.
PROMPTS = 2
CONTEXT = 2048
_ON_A_CARD = "pytest --hw=auto tries the stack on a card"
NO_GPU = "there is no GPU here"


@dataclass(frozen=True)
class ChangedValue:
    """A value that is another one in the rehearsal, and why."""

    key: str
    old: Any
    new: Any
    why: str


@dataclass(frozen=True)
class Unrehearsed:
    """Something that the user's run has and the rehearsal doesn't, and why."""

    what: str
    why: str


def find_changes(
    config: Mapping[str, Any], world: int, steps: int, folder: str, no_engine: str = ""
) -> list[ChangedValue | Unrehearsed]:
    """Return what a rehearsal changes in a configuration.

    Args:
        config: Values by name, those of the fields' defaults too.
        world: How many processes the user's run has.
        steps: Optimizer steps of the rehearsal.
        folder: Where the trainer may write.
        no_engine: Why vLLM can't generate here; "" if it can.
    """
    found = [
        *_places(config, folder),
        *_lengths(config, steps),
        *_batch(config, world),
        *_device(config),
        *_engine(config, no_engine),
    ]
    return [one for one in found if not (isinstance(one, ChangedValue) and one.old == one.new)]


def _set(config: Mapping[str, Any], key: str, new: Any, why: str) -> Iterator[ChangedValue]:
    """Yield a change of a key that this release has."""
    if key in config:
        yield ChangedValue(key, config[key], new, why)


def _places(config: Mapping[str, Any], folder: str) -> Iterator[ChangedValue | Unrehearsed]:
    yield from _set(config, "output_dir", f"{folder}/trainer", "your folder stays as it is")
    if config.get("logging_dir"):
        yield from _set(config, "logging_dir", f"{folder}/logs", "your folder stays as it is")
    trackers = config.get("report_to")
    if trackers not in (None, "none", [], ["none"]):
        yield from _set(config, "report_to", [], "nothing is sent to a tracker")
        yield Unrehearsed(f"reporting to {trackers}", "nothing is sent anywhere")
    if config.get("push_to_hub"):
        yield from _set(config, "push_to_hub", False, "nothing is sent anywhere")
        yield Unrehearsed("pushing to the hub", "nothing is sent anywhere")
    if config.get("resume_from_checkpoint"):
        yield from _set(config, "resume_from_checkpoint", None, "your checkpoint is of the whole model")
        yield Unrehearsed(
            "resuming from your checkpoint", "it is of the whole model; a checkpoint of the rehearsal's is"
        )


def _lengths(config: Mapping[str, Any], steps: int) -> Iterator[ChangedValue | Unrehearsed]:
    yield from _set(config, "max_steps", steps, "the rehearsal's own number")
    why = "so that each step is recorded"
    yield from _set(config, "logging_strategy", "steps", why)
    yield from _set(config, "logging_steps", 1, why)
    yield from _set(config, "logging_nan_inf_filter", False, "so that a loss that isn't a number is seen")
    yield from _set(config, "disable_tqdm", True, "the log has lines instead")
    why = "saved once, at the end"
    yield from _set(config, "save_strategy", "steps", why)
    yield from _set(config, "save_steps", steps, why)
    yield from _set(config, "load_best_model_at_end", False, "there is one checkpoint")
    if config.get("eval_strategy", "no") != "no":
        yield from _set(config, "eval_strategy", "steps", "evaluated once, at the end")
        yield from _set(config, "eval_steps", steps, "evaluated once, at the end")
    for key in ("warmup_steps", "warmup_ratio"):
        if config.get(key):
            yield from _set(config, key, type(config[key])(0), f"else {steps} steps barely move the weights")
    longest = config.get("max_completion_length") or COMPLETION
    yield from _set(config, "max_completion_length", min(longest, COMPLETION), "seconds instead of minutes")
    if longest > COMPLETION:
        yield Unrehearsed(f"completions of {longest} tokens", f"those of the rehearsal have at most {COMPLETION}")
        if config.get("mask_truncated_completions"):
            why = f"of {COMPLETION} tokens nearly every completion is cut off, and nothing would be trained"
            yield from _set(config, "mask_truncated_completions", False, why)
            yield Unrehearsed("mask_truncated_completions", why)


def _batch(config: Mapping[str, Any], world: int) -> Iterator[ChangedValue | Unrehearsed]:
    """Keep what the ratios of batch sizes are: rollouts to update, groups to batch."""
    rows = config["per_device_train_batch_size"]
    accumulated = config["gradient_accumulation_steps"]
    generations = config["num_generations"]
    whole = config.get("generation_batch_size")
    slices = config.get("steps_per_generation") or (whole // (rows * world) if whole else accumulated)
    small = min(generations, GENERATIONS)
    ratio = Fraction(max(slices, 1), accumulated)
    part = ratio.denominator
    if accumulated > 1:
        part *= -(-2 // ratio.denominator)
    new_slices = part * ratio.numerator // ratio.denominator
    prompts = min(PROMPTS, max(1, rows * world * slices // generations))
    while prompts * small % new_slices:
        prompts += 1
    why = "the ratio of rollouts, micro batches and groups is kept"
    yield from _set(config, "num_generations", small, "seconds instead of minutes")
    yield from _set(config, "gradient_accumulation_steps", part, why)
    if config.get("steps_per_generation") or new_slices != part:
        yield from _set(config, "steps_per_generation", new_slices, why)
    if whole:
        yield from _set(config, "generation_batch_size", None, why)
        yield from _set(config, "steps_per_generation", new_slices, why)
    yield from _set(config, "per_device_train_batch_size", prompts * small // new_slices, why)
    if config.get("eval_strategy", "no") != "no":
        evaluated = config.get("num_generations_eval")
        if evaluated:
            yield from _set(config, "num_generations_eval", small, why)
        yield from _set(config, "per_device_eval_batch_size", small, why)
    if world > 1:
        yield Unrehearsed(f"{world} processes", f"the rehearsal has one; {_ON_A_CARD}")


def _device(config: Mapping[str, Any]) -> Iterator[ChangedValue | Unrehearsed]:
    why = NO_GPU
    yield from _set(config, "use_cpu", True, why)
    for key in ("bf16", "fp16", "bf16_full_eval", "fp16_full_eval", "tf32", "torch_compile"):
        if config.get(key):
            yield from _set(config, key, False, why)
            yield Unrehearsed(key, f"{why}: the rehearsal computes in float32; {_ON_A_CARD}")
    for key in ("deepspeed", "fsdp", "use_liger_kernel"):
        if config.get(key):
            yield from _set(config, key, False if key == "use_liger_kernel" else None, why)
            yield Unrehearsed(key, f"{why}; {_ON_A_CARD}")
    optimizer = str(getattr(config.get("optim"), "value", config.get("optim")))
    if any(word in optimizer for word in ("8bit", "4bit", "paged", "bnb", "apex", "torchao")):
        yield from _set(config, "optim", "adamw_torch", why)
        yield Unrehearsed(f"the optimizer {optimizer}", f"{why}; {_ON_A_CARD}")


def _engine(config: Mapping[str, Any], no_engine: str) -> Iterator[ChangedValue | Unrehearsed]:
    if not config.get("use_vllm"):
        return
    if no_engine:
        yield from _set(config, "use_vllm", False, no_engine)
        yield Unrehearsed("vLLM", f"{no_engine}: transformers generates, and no weights are sent")
        return
    if config.get("vllm_mode", "colocate") != "colocate":
        yield from _set(config, "vllm_mode", "colocate", "no server is started, so that the engine's weights are seen")
        yield Unrehearsed("vLLM's server", "the engine runs in the trainer's process")
    if config.get("vllm_tensor_parallel_size", 1) > 1:
        yield from _set(config, "vllm_tensor_parallel_size", 1, "the engine has one process")
        yield Unrehearsed("the engine's tensor parallelism", f"the engine has one process; {_ON_A_CARD}")
    if config.get("vllm_enable_sleep_mode"):
        yield from _set(config, "vllm_enable_sleep_mode", False, "vLLM has no sleep mode on a CPU")
        yield Unrehearsed("vLLM's sleep mode", f"vLLM has none on a CPU; {_ON_A_CARD}")
    longest = config.get("vllm_max_model_length")
    if longest is None or longest > CONTEXT:
        yield from _set(config, "vllm_max_model_length", CONTEXT, "memory for the engine's cache")
