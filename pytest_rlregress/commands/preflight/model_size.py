"""How large a model is, by its config.json or by its name."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Qwen 2.5: the size in its name, parameters, layers, widths of the residual stream and of the MLP.
SIZES = (
    (0.5, 494_032_768, 24, 896, 4864),
    (1.5, 1_543_714_304, 28, 1536, 8960),
    (3, 3_085_938_688, 36, 2048, 11008),
    (7, 7_615_616_512, 28, 3584, 18944),
    (14, 14_770_033_664, 48, 5120, 13824),
    (32, 32_763_876_352, 64, 5120, 27648),
    (72, 72_706_203_648, 80, 8192, 29568),
)


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder, by the names of its config.json."""

    parameters: int
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int = 151_936


def model_of(path: str) -> Model | None:
    """Return the sizes of a model by its config.json, if it is here, else by its name: Qwen2.5-7B, Qwen3-30B-A3B."""
    file = os.path.join(os.path.expanduser(path), "config.json")
    if os.path.isfile(file):
        try:
            return _by_config(json.loads(Path(file).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
    parts = Path(path).parts
    # The cache of the model hub has the name two folders up: models--Qwen--Qwen2.5-7B/snapshots/HASH.
    name = next((part for part in parts if part.startswith("models--")), "".join(parts[-1:]))
    size = re.search(r"(?<![A-Za-z\d.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])", name)
    if not size:
        return None
    active = re.search(r"(?<![A-Za-z])A(\d+(?:\.\d+)?)B", name) or size
    nearest, parameters, *widths = min(SIZES, key=lambda known: abs(known[0] - float(active[1])))
    qwen = "qwen2" in name.lower() and nearest == float(size[1])
    return Model(parameters if qwen else int(float(size[1]) * 1e9), *widths)


def model_with(parameters: int) -> Model:
    """Return a model of so many parameters, as wide and deep as the known one that is nearest to it in size."""
    _, _, *widths = min(SIZES, key=lambda known: abs(known[1] - parameters))
    return Model(parameters, *widths)


def _by_config(config: dict[str, Any]) -> Model | None:
    """Count parameters as Qwen 2 and Llama have them; None for a mixture of experts and what else has other parts."""
    config = config.get("text_config", config)
    try:
        layers, width, mlp = (int(config[key]) for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
        heads, vocabulary = int(config["num_attention_heads"]), int(config["vocab_size"])
    except (KeyError, TypeError, ValueError):
        return None
    if any("experts" in key for key in config):
        return None
    head = int(config.get("head_dim") or width // heads)
    attention = 2 * width * head * (heads + int(config.get("num_key_value_heads") or heads))
    embeddings = vocabulary * width * (1 if config.get("tie_word_embeddings") else 2)
    return Model(layers * (attention + 3 * width * mlp) + embeddings, layers, width, mlp, vocabulary)
