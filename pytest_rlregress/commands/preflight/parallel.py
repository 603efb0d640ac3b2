"""Checks of preflight about what is spread over cards: heads, replicas of the engine, rows of dynamic batches."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_rlregress.commands.preflight.config import PlannedRun, Unchecked
from pytest_rlregress.commands.preflight.training import on_one_card
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.text import plural

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
#: Attention heads of models that a name tells, by a pattern of the name; config.json goes before it.
_HEADS = {
    r"qwen2(?:\.5)?.*[-_]0\.5b|qwen2.5.*-0\.5b": 14,
    r"(?:qwen2|distill-qwen).*[-_]1\.5b": 12,
    r"(?:qwen2|distill-qwen).*[-_]7b": 28,
    r"qwen2\.5.*[-_]3b": 16,
    r"(?:qwen2|distill-qwen).*[-_](?:14|32)b": 40,
    r"qwen2.*[-_]72b": 64,
    r"qwen3[-_](?:0\.6|1\.7)b": 16,
    r"qwen3[-_](?:4|8)b|llama-3.*[-_]8b|distill-llama-8b": 32,
    r"qwen3[-_]14b": 40,
    r"qwen3[-_]32b|llama-3.*[-_]70b|distill-llama-70b": 64,
}
# Rollouts that spread an engine over cards.
_ENGINES = ("vllm", "sglang", "trtllm")


def spread_evenly(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Yield heads that can't be spread over an engine's cards, and cards that can't be cut into engines."""
    yield from _check_heads(run)
    if run.verl and "actor_rollout_ref" in run.tree:
        yield from _check_replicas(run)
        yield from _check_rows(run)


def count_heads(path: object) -> int | None:
    """Return the attention heads of a model, by its config.json if it is here, else by its name."""
    if not isinstance(path, str):
        return None
    file = os.path.join(os.path.expanduser(path), "config.json")
    if os.path.isfile(file):
        try:
            config = json.loads(Path(file).read_text(encoding="utf-8"))
            return int(config.get("text_config", config)["num_attention_heads"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
    name = Path(path).name.lower()
    return next((heads for pattern, heads in _HEADS.items() if re.search(pattern, name)), None)


def _check_heads(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    path, spread_key = run.get(run.keys.model), run.keys.tensor_parallel
    spreads = {spread_key: "tensor parallel cards of the engine"}
    if run.verl:
        spreads[f"{_ACTOR}.ulysses_sequence_parallel_size"] = "cards of a sequence, by Ulysses"
    for key, words in spreads.items():
        spread = int(run.number(key, 1) or 1)
        if spread < 2 or (run.trl and not run.get("use_vllm")):
            continue
        heads = count_heads(path)
        if heads is None:
            yield Unchecked(f"how many attention heads {path} has is not known here, for {key} = {spread}")
        elif heads % spread:
            fitting = [one for one in range(1, heads + 1) if heads % one == 0 and one <= spread]
            why = f"the {heads} attention heads of {path} can't be spread over {spread} {words}"
            why += f": {', '.join(map(str, fitting))} can"
            even = [one for one in fitting if not run.verl or _cards(run) % one == 0]
            yield Advice(key, why, run.write(key, even[-1]))


def _cards(run: PlannedRun) -> int:
    return int((run.number("trainer.n_gpus_per_node", 8) or 1) * (run.number("trainer.nnodes", 1) or 1))


def _check_replicas(run: PlannedRun) -> Iterator[Advice]:
    if run.get(f"{_ROLLOUT}.name") not in _ENGINES or not on_one_card(run):
        return
    key = run.keys.tensor_parallel
    spread = int(run.number(key, 2) or 1)
    others = 1
    for name in ("data_parallel_size", "pipeline_model_parallel_size"):
        others *= int(run.number(f"{_ROLLOUT}.{name}", 1) or 1)
    cards = _cards(run)
    if cards % (spread * others) == 0:
        return
    default = " by default" if key not in run.places else ""
    why = f"{key.rpartition('.')[2]} is {spread}{default}"
    why += f", times {others} of other parallelism," if others > 1 else ","
    why += f" and {plural(cards, 'GPU')} {'is' if cards == 1 else 'are'} no multiple of it"
    heads = count_heads(run.get(run.keys.model))
    fits = [one for one in range(1, spread + 1) if cards % (one * others) == 0 and (not heads or heads % one == 0)]
    yield Advice(key, why, run.write(key, fits[-1] if fits else 1))


def _check_rows(run: PlannedRun) -> Iterator[Advice]:
    """Yield budgets of tokens that are smaller than the longest row, which verl asserts against."""
    row = sum(int(run.number(key, 512) or 0) for key in ("data.max_prompt_length", "data.max_response_length"))
    spread = int(run.number(f"{_ACTOR}.ulysses_sequence_parallel_size", 1) or 1)
    dynamic = run.get(f"{_ACTOR}.use_dynamic_bsz")
    tables = {
        f"{_ACTOR}.ppo_max_token_len_per_gpu": dynamic,
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": run.get(f"{_ROLLOUT}.log_prob_use_dynamic_bsz", dynamic),
    }
    if run.get(f"{_ACTOR}.use_kl_loss") or run.get("algorithm.use_kl_in_reward"):
        tables[f"{_REF}.log_prob_max_token_len_per_gpu"] = run.get(f"{_REF}.log_prob_use_dynamic_bsz", dynamic)
    for key, is_dynamic in tables.items():
        budget = run.number(key, run.number(f"{_ACTOR}.ppo_max_token_len_per_gpu", 16384))
        if is_dynamic and budget and budget * spread < row:
            why = f"a row of data.max_prompt_length and data.max_response_length has up to {row} tokens, and dynamic "
            why += f"batches take {budget:g} of each of {plural(spread, 'card')}: verl asserts that a row fits"
            yield Advice(key, why, run.write(key, -(-row // spread)))
