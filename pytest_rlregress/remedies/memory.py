"""Remedies for one GPU that trainer and engine share: how much memory each may take."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "engine_memory_share",
    "predict_training_memory",
    "without_expandable_segments",
]

SHARED = 0.5  # documented for a card that trainer and engine share
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def engine_memory_share(total_bytes: int, reserved_bytes: int) -> float:
    """Return the largest ``gpu_memory_utilization`` with which the engine leaves a card's other user what it needs.

    vLLM takes the value as a share of the card's total memory, whatever others hold of it.

    Args:
        total_bytes: Of the card, as CUDA reports it.
        reserved_bytes: What the trainer and all else hold at their peak, not only when the engine starts.

    Returns:
        A share in steps of 0.0001, at most 0.5: more was not seen to work on a shared card.

    Raises:
        ValueError: Nothing is left for an engine.
    """
    share = min(SHARED, (total_bytes - reserved_bytes) * 10_000 // total_bytes / 10_000)
    if share <= 0:
        raise ValueError(
            f"no room for an engine: {reserved_bytes / 2**30:.2f} of {total_bytes / 2**30:.2f} GiB are reserved for "
            "the trainer. Give the engine a card of its own or make the trainer smaller."
        )
    return share


def predict_training_memory(
    *,
    parameters: int,
    trainable: int,
    num_hidden_layers: int,
    hidden_size: int,
    intermediate_size: int,
    vocab_size: int,
    tokens: int,
    checkpointing: bool,
    bytes_per_weight: int = 4,
    bytes_per_activation: int = 2,
) -> int:
    """Predict the bytes that a trainer of a decoder like Qwen 2 or Llama holds at its peak, from step 2 on.

    Counted are weights, gradients, AdamW's moments, and what is kept for backward with attention that never writes its
    scores down (SDPA, flash; keys and values as wide as queries) and a loss from float32 log-probabilities. Not
    counted, 1 to 3 GiB on a GPU: the CUDA context, fragmentation, and the copies of weights that FSDP gathers.

    Args:
        parameters: Of the whole model, LoRA's included.
        trainable: Those that have a gradient: all, or only LoRA's.
        num_hidden_layers: As in the model's ``config.json``, and so are the next three.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP; in a mixture of experts, of those together that a token goes to.
        vocab_size: Rows of the LM head.
        tokens: In a micro batch: sequences times their padded length.
        checkpointing: Whether each layer keeps only its input, and is computed again for backward.
        bytes_per_weight: 4 for float32 weights, as prime-rl and verl train; 2 for bfloat16.
        bytes_per_activation: 2 for bfloat16 or mixed precision, 4 for float32.
    """
    hidden, intermediate = tokens * hidden_size, tokens * intermediate_size
    layer = bytes_per_activation * (6 * hidden + 4 * intermediate) + 4 * 2 * hidden  # norms are float32 always
    in_flight = bytes_per_activation * 3 * intermediate  # a layer's backward, on top of what it has kept
    logits = 12 * tokens * vocab_size  # log-probabilities, their gradient and that of the logits, in float32
    kept, recomputed = num_hidden_layers * layer, 0
    if checkpointing:
        kept, recomputed = num_hidden_layers * bytes_per_activation * hidden, layer
    gradients = bytes_per_weight * trainable
    return bytes_per_weight * (parameters + 2 * trainable) + max(
        kept + logits,  # as backward begins
        kept + recomputed + in_flight,  # in the last layer
        gradients + layer + in_flight,  # in the first
        2 * gradients,  # in the step: AdamW on a GPU takes all square roots at once
    )


def without_expandable_segments(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment to start the engine in: without ``expandable_segments``, all else as it was.

    torch reads its allocator's options from ``PYTORCH_ALLOC_CONF`` and, older, ``PYTORCH_CUDA_ALLOC_CONF`` and
    ``PYTORCH_HIP_ALLOC_CONF``; other options in them stay, and a variable that is left without any goes.
    """
    cleared = dict(environ)
    for name in ALLOCATOR_VARIABLES:
        options = cleared.pop(name, "").split(",")
        kept = ",".join(one for one in options if one.partition(":")[0].strip() != "expandable_segments")
        if kept.strip():
            cleared[name] = kept
    return cleared
