"""The model of a rehearsal: the user's if it is small, else one of the same architecture with two layers.

The small one has random weights, and the user's tokenizer, chat template and generation settings where they can be
read; else it is ``tiny_qwen`` with its own.
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.rehearse import events

#: A model whose weights have more bytes is replaced.
LARGE = 400 * 10**6
LAYERS = 2
#: Sizes of a small model by the names that transformers' configurations have; a head has 32, vLLM's least on a CPU.
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "head_dim": 32,
    "moe_intermediate_size": 128,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
#: Every so many ids end a completion: a random model hardly draws one single id.
ENDING = 64
_replaced: dict[str, str] = {}


def replaced(name: str) -> str | None:
    """Return the folder of the small model in place of one that was asked for; None if it was kept."""
    find(name)
    return _replaced.get(name)


@functools.cache
def find(name: str) -> str:
    """Return the folder of the model to load for a name or folder: the same if it is small."""
    folder = Path(name)
    if folder.is_dir():
        size = sum(file.stat().st_size for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern))
        if size <= LARGE or name in _replaced.values():
            return name
    try:
        found = _build(name)
        why = "the same architecture with two layers and random weights; tokenizer and template are yours"
        events.note_unrehearsed("the model's own weights and size", "a rehearsal's has two layers and random weights")
    except (OSError, ValueError, KeyError) as error:
        from pytest_rlregress.fixtures.tiny_qwen import build

        found = str(build("tiny").directory)
        reason = str(error).strip().splitlines()[0]
        why = f"it can't be read here ({reason}): a tiny Qwen2 with its own tokenizer and template"
        events.write("no_template", why=f"the tokenizer of {name} can't be read here")
        events.note_unrehearsed(f"{name}: its template, vocabulary and architecture", f"can't be read here ({reason})")
    _replaced[name] = found
    events.note_change("model", name, found, why)
    return found


def change_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of ``from_pretrained`` with what needs a GPU replaced."""
    import torch

    if torch.cuda.is_available():
        return options
    changed = dict(options)
    attention = str(changed.get("attn_implementation") or "")
    if "flash" in attention or "kernels" in attention:
        changed["attn_implementation"] = "sdpa"
        events.note_change("attn_implementation", attention, "sdpa", "there is no GPU here")
        events.note_unrehearsed(attention, "it needs a GPU")
    for key in ("dtype", "torch_dtype"):
        dtype = changed.get(key)
        if dtype is not None and str(dtype).removeprefix("torch.") != "float32":
            changed[key] = torch.float32
            events.note_change(key, str(dtype), "float32", "vLLM computes in float32 on a CPU")
            if str(dtype) != "auto":
                events.note_unrehearsed(f"weights in {str(dtype).removeprefix('torch.')}", "vLLM has float32 on a CPU")
    if changed.get("quantization_config") is not None:
        changed["quantization_config"] = None
        events.note_unrehearsed("quantized weights", "they need a GPU")
    if changed.get("device_map") not in (None, "cpu"):
        changed["device_map"] = None
    return changed


def _build(name: str) -> str:
    """Write a small model of a model's architecture into the rehearsal's folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    config = AutoConfig.from_pretrained(name)
    text = config.get_text_config()
    for key, value in SIZES.items():
        if isinstance(getattr(text, key, None), int):
            setattr(text, key, min(getattr(text, key), value))
    grouped = getattr(text, "num_key_value_heads", text.num_attention_heads)
    text.num_key_value_heads = min(grouped, 2) if grouped < SIZES["num_attention_heads"] or grouped <= 8 else 4
    text.num_hidden_layers = LAYERS
    for key in ("layer_types", "mlp_only_layers"):
        if isinstance(getattr(text, key, None), list):
            setattr(text, key, getattr(text, key)[:LAYERS])
    if hasattr(text, "max_window_layers"):
        text.max_window_layers = LAYERS
    text.initializer_range = 0.08  # so that what a token sees of others, and an update, shows
    folder = events.folder() / "model" / os.path.basename(name.rstrip("/"))
    tokenizer = AutoTokenizer.from_pretrained(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(name)
    own = model.generation_config.eos_token_id
    ids = own if isinstance(own, list) else [tokenizer.eos_token_id if own is None else own]
    ends = [*ids, *range(ENDING - 1, len(tokenizer), ENDING)]
    model.generation_config.eos_token_id = list(dict.fromkeys(ends))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    events.note_change(
        "generation_config: eos_token_id", ids, f"these and every {ENDING}th id", "so that some end early"
    )
    return str(folder)
