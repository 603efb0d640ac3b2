"""Rules of preflight: one for each failure that a configuration can show, which puts its values to a remedy.

Where facts are lacking that would make a finding certain, a rule finds nothing, or says what it could not check.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from pytest_rlregress import remedies
from pytest_rlregress.commands.preflight.batch_sizes import batch_sizes
from pytest_rlregress.commands.preflight.config import PlannedRun, Rule, Unchecked, not_known
from pytest_rlregress.commands.preflight.memory import gpu_memory_utilization, trainer_engine_oom
from pytest_rlregress.commands.preflight.names import added_key, unknown_key, unknown_value
from pytest_rlregress.commands.preflight.refusals import refused_values
from pytest_rlregress.commands.preflight.training import engine_sleeps, lora_of, on_one_card, trains_with_fsdp
from pytest_rlregress.remedies.advice import Advice

_WORKERS_PYTHON = "ray_kwargs.ray_init.runtime_env.py_executable"
_ROOM = 512  # tokens for prompts whose length nothing says
_STOP = "ray stop  # ends every Ray process of this machine, and removes the address"


def max_tokens_overflow(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Prompt and completion that together exceed the engine's context."""
    key, context = run.keys.completion, run.keys.context
    asked, limit = run.number(key), run.number(context)
    if run.trl and not _uses_vllm(run):
        return
    if asked is None or limit is None:
        if given := [one for one in (key, context) if run.hides(one)]:
            yield not_known(*given)
        else:
            lacking = [one for one in (key, context) if run.number(one) is None]
            yield Unchecked(f"{' and '.join(lacking)}: not given")
        return
    prompt, known_from = _longest_prompt(run, int(limit))
    try:
        fits = remedies.clamp_max_tokens(int(asked), prompt or 1, int(limit))
    except ValueError as error:
        yield Advice(context, str(error), run.write(context, int(asked) + (prompt or 1)))
        return
    if fits < asked:
        why = f"{asked} tokens do not fit behind a prompt of {prompt or 1} ({known_from}): {context} is {limit}"
        if prompt is None:  # how much to leave for prompts is not known: the completion stays
            room = f"  # with room for prompts of {_ROOM} tokens; --prompt-tokens says what yours need"
            yield Advice(key, why, run.write(context, int(asked) + _ROOM, like=key) + room)
        else:
            yield Advice(key, why, run.write(key, fits))
    elif prompt is None:
        why = (
            f"{key} = {asked} fits prompts of at most {limit - asked} tokens, and how long yours are the configuration "
        )
        yield Unchecked(f"{why}does not say: give --prompt-tokens", ("--prompt-tokens",))


def _longest_prompt(run: PlannedRun, limit: int) -> tuple[int | None, str]:
    """Return the longest prompt, if it is known, and from where."""
    if run.prompt_tokens:
        return run.prompt_tokens, "--prompt-tokens"
    if named := run.keys.prompt:
        if length := run.number(named):
            return int(length), named
    # What prime-rl trains on, prompt and completion, is at most seq_len: the rest of the context is for longer prompts.
    elif (trained := run.number("orchestrator.seq_len") or limit) < limit:
        return limit - int(trained), "what orchestrator.seq_len leaves"
    return None, "the shortest there is"


def fsdp_cpu_offload_lora(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """prime-rl's FSDP offload together with LoRA."""
    key = "trainer.model.fsdp_cpu_offload"
    if run.get(key) is True and lora_of(run):
        why = "LoRA's weights are moved between CPU and GPU while FSDP holds them, which torch refuses"
        instead = "fsdp_cpu_offload = false\n# and to save memory on the card:\n[trainer.model.ac]\nfreq = 1"
        yield Advice(key, why, instead)


def windows_path_in_wsl(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Paths with a drive letter: wrong wherever the run is on Linux, WSL included."""
    if sys.platform == "win32" and not run.packages_unknown:
        return
    for key, value in run.leaves():
        if isinstance(value, str) and (path := remedies.wsl_path(value)) != value:
            yield Advice(key, f"{value} is a Windows path, which isn't a path on Linux and WSL", path)


def dataset_root_not_file(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Folders where verl hands parquet files to load_dataset."""
    for key in ("data.train_files", "data.val_files"):
        for entry, path in run.leaves(key):
            if not isinstance(path, str):
                continue
            local = os.path.expanduser(path)
            if not os.path.exists(local):
                yield Unchecked(f"{entry}: there is no {path} on this machine")
                continue
            try:
                file = remedies.dataset_file(local)
            except ValueError as error:
                yield Advice(entry, str(error), run.write(entry, f"{path}/….parquet"))
            else:
                if file != local:
                    yield Advice(entry, f"{path} is a folder, and load_dataset takes files", file)


def expandable_segments(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Expandable segments beside the memory pool of vLLM's sleep mode, which is verl's default."""
    if not engine_sleeps(run) or not _uses_vllm(run):
        return
    variables = [(name, name, value) for name, value in run.environ.items()]
    inside = "ray_kwargs.ray_init.runtime_env.env_vars"
    variables += [(key, key.removeprefix(f"{inside}."), str(value)) for key, value in run.leaves(inside)]
    for key, name, value in variables:
        switched_on = re.search(r"expandable_segments\s*:\s*True", value)
        if switched_on and remedies.without_expandable_segments({name: value}) != {name: value}:
            fits = run.is_release("vllm", ">=0.20.2")
            if fits is None:
                why = (
                    "which vLLM the run has isn't known here; from 0.20.2 on its pool switches expandable segments off"
                )
                yield Unchecked(f"{why} (is it what is installed here: --installed)", ("--installed",))
            elif not fits:
                why = f"{name}={value}: not beside the memory pool of vLLM's sleep mode, before vLLM 0.20.2"
                yield Advice(key, why, f"unset {name}" if key == name else f"# leave {name} out")


def sleep_reloads_checkpoint(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """TRL's sleep mode, where each rollout is of the weights that the engine was started with."""
    key = "vllm_enable_sleep_mode"
    if not engine_sleeps(run) or not on_one_card(run) or run.is_release("trl", "<0.26"):
        return
    fits = run.is_release("trl", ">=1.10.0")
    if fits is None:
        why = "which TRL the run has isn't known here; from 0.26 to 1.9 sleep mode samples from the first checkpoint"
        yield Unchecked(f"{why} (is it what is installed here: --installed)", ("--installed",))
    elif not fits:
        why = "TRL 0.26 to 1.9 reloads the first checkpoint before each rollout: it is never of the trained weights"
        yield Advice(key, why, f"{run.write(key, 'false')}  # or TRL 1.10")


def flash_attention_missing(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """FlashAttention 2, which is the trainers' default, where it is not installed. Only FSDP asks for it."""
    key, default = run.keys.attention
    if (not run.verl or trains_with_fsdp(run)) and run.get(key, default) == "flash_attention_2":
        padding = "actor_rollout_ref.model.use_remove_padding"
        more = f"\n{run.write(padding, 'false')}" if run.verl else ""
        yield from _needs(run, key, "flash-attn", run.write(key, "sdpa") + more)


def vllm_missing(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """vLLM, where it is not installed."""
    if _uses_vllm(run):
        key = {"verl": "actor_rollout_ref.rollout.name", "trl": "use_vllm"}.get(run.trainer, "inference")
        # The extra takes the release that the trainer supports; prime-rl's lock has it.
        extra = f'pip install "{run.trainer}[vllm]"'
        yield from _needs(run, key, "vllm", extra if run.verl or run.trl else "uv sync in prime-rl's checkout")


def apex_missing(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Megatron's fused gradient accumulation without Apex."""
    for key, value in run.leaves():
        if key.endswith(".gradient_accumulation_fusion") and value is True:
            yield from _needs(run, key, "apex", run.write(key, "false"))


def no_kernel_for_card(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield a card for which the installed torch was not built."""
    if run.capability and run.packages_unknown:
        yield Unchecked(run.packages_unknown)
    elif run.capability and find_spec("torch") and (why := remedies.missing_kernels(run.capability)):
        yield Advice("torch", why, why.rpartition("(")[2].rstrip(")."))


def mbridge_missing(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """megatron-core, or a bridge between Megatron's weights and Hugging Face's, that is not installed."""
    for key, value in run.leaves():
        if key.endswith(".strategy") and value == "megatron":
            yield from _needs(run, key, "megatron", run.write(key, "fsdp"))
        if not key.endswith(".use_mbridge") or value is not True:
            continue
        vanilla = run.get(f"{key.rpartition('.')[0]}.vanilla_mbridge")
        only_with_bridge = run.is_release("verl", ">=0.9")  # and with the choice of one
        bridge = "mbridge" if vanilla or (vanilla is None and not only_with_bridge) else "megatron-bridge"
        instead = f"pip install {bridge}" if only_with_bridge else run.write(key, "false")
        if run.packages_unknown or remedies.missing_symbol(bridge) != remedies.missing_symbol("megatron"):
            yield from _needs(run, key, bridge, instead)  # else it is Megatron's


def undeclared_dependency(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Packages that verl imports for a setting, or by default, and does not declare."""
    if run.packages_unknown:
        yield Unchecked(run.packages_unknown)
    else:
        yield from remedies.undeclared_dependencies(run.tree)


def trainer_not_found(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield a command whose interpreter, or that of Ray's workers, has no module of the trainer."""
    module = run.program.partition(" ")[0]
    instead = f"the interpreter that has {run.trainer}, and no other {run.trainer} on its PYTHONPATH"
    workers = run.get(_WORKERS_PYTHON)
    if not run.interpreter and not workers:
        return
    if run.packages_unknown:
        yield Unchecked(run.packages_unknown)
        return
    asked = []
    if run.interpreter and not run.composed:
        asked.append((module, run.interpreter, module))
    if isinstance(workers, str) and " " not in workers:  # it may be a command too: uv run --no-sync
        asked.append((_WORKERS_PYTHON, workers, run.trainer))
    for key, interpreter, name in asked:
        if why := remedies.module_not_found(interpreter, name, run.environ):
            yield Advice(key, why, instead)


def stale_ray_session(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield an address of a Ray cluster that is gone."""
    if run.packages_unknown:
        yield Unchecked(run.packages_unknown)
    elif found := remedies.stale_ray_address(run.environ):
        named = found.endswith("as RAY_ADDRESS says")
        why = f"ray.init() joins the cluster at {found}, where nobody answers"
        yield Advice("RAY_ADDRESS", why, "unset RAY_ADDRESS" if named else _STOP)


def _uses_vllm(run: PlannedRun) -> bool:
    if run.verl:
        return bool(run.get("actor_rollout_ref.rollout.name") == "vllm")
    if run.trl:
        return on_one_card(run)
    return isinstance(run.get("inference"), Mapping)


def _needs(run: PlannedRun, key: str, setting: str, instead: str) -> Iterator[Advice | Unchecked]:
    if run.packages_unknown:
        yield Unchecked(run.packages_unknown)
    elif why := remedies.missing_symbol(setting):
        yield Advice(key, why, instead)


# These aren't documented failures: they need no more than the trainer's own schema.
OWN = ("unknown-key", "unknown-value", "added-key", "batch-sizes", "refused-values")
ALL = ("prime-rl", "trl", "verl")
#: By failure: its rule, and the trainers whose runs are put to it.
RULES: dict[str, tuple[Rule, tuple[str, ...]]] = {
    "config-key-placement": (lambda run: remedies.check_key_placement(run.tree), ("prime-rl",)),
    "fsdp-cpu-offload-lora": (fsdp_cpu_offload_lora, ("prime-rl",)),
    "unknown-key": (unknown_key, ALL),
    "unknown-value": (unknown_value, ALL),
    "max-tokens-overflow": (max_tokens_overflow, ALL),
    "gpu-memory-utilization": (gpu_memory_utilization, ALL),
    "trainer-engine-oom": (trainer_engine_oom, ALL),
    "windows-path-in-wsl": (windows_path_in_wsl, ALL),
    "flash-attention-missing": (flash_attention_missing, ALL),
    "vllm-missing": (vllm_missing, ALL),
    "no-kernel-for-card": (no_kernel_for_card, ALL),
    "added-key": (added_key, ("verl",)),
    "batch-sizes": (batch_sizes, ALL),
    "refused-values": (refused_values, ("trl", "verl")),
    "empty-env-in-config": (lambda run: remedies.check_interpolations(run.written, run.environ), ("verl",)),
    "dataset-root-not-file": (dataset_root_not_file, ("verl",)),
    "expandable-segments": (expandable_segments, ("trl", "verl")),
    "sleep-reloads-checkpoint": (sleep_reloads_checkpoint, ("trl",)),
    "apex-missing": (apex_missing, ("verl",)),
    "mbridge-missing": (mbridge_missing, ("verl",)),
    "undeclared-trainer-dependency": (undeclared_dependency, ("verl",)),
    "trainer-not-found": (trainer_not_found, ("verl",)),
    "stale-ray-session": (stale_ray_session, ("verl",)),
}
