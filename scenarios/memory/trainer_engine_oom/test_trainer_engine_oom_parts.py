"""What a predicted peak is made of: of each part its bytes, and of the peaks the largest."""

from __future__ import annotations

import pytest

from pytest_rlregress.scenarios.memory.trainer import KEYS, build

pytestmark = pytest.mark.needs("peft")

TOKENS, HIDDEN, INTERMEDIATE = 512, 512, 512


def kept_by_a_layer(checkpointing):
    """Bytes that a real layer keeps for backward, in float32: those of three layers less those of two."""
    import torch

    def kept(layers):
        size = dict(zip(KEYS, (layers, HIDDEN, INTERMEDIATE, 64), strict=True))
        model, tensors = build(size, lora=False, checkpointing=checkpointing, dtype="float32"), {}
        weights = {one.untyped_storage()._cdata for one in model.parameters()}

        def keep(tensor):
            tensors[tensor.untyped_storage()._cdata] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            ids = torch.ones(1, TOKENS, dtype=torch.long)
            made = model.model(input_ids=ids, attention_mask={"full_attention": None})
        assert made.last_hidden_state.requires_grad
        return sum(one.untyped_storage().nbytes() for key, one in tensors.items() if key not in weights)

    return kept(3) - kept(2)


@pytest.mark.guards("trainer-engine-oom")
def test_each_part_is_in_the_peaks_it_belongs_to(subject):
    def peak(layers, checkpointing=False, vocabulary=0, tokens=TOKENS, **weights):
        return subject(
            **{"parameters": 0, "trainable": 0, **weights},
            **dict(zip(KEYS, (layers, HIDDEN, INTERMEDIATE, vocabulary), strict=True)),
            tokens=tokens,
            checkpointing=checkpointing,
            bytes_per_activation=4,
        )

    layer, own_input = peak(3) - peak(2), peak(3, True) - peak(2, True)
    in_flight = 3 * 4 * TOKENS * INTERMEDIATE  # gradients of the MLP's two halves and of their product
    # Not counted: a number a token for each norm and each head, keys and values before they are as wide as queries.
    assert 0.97 * (kept := kept_by_a_layer(False)) <= layer <= kept
    assert own_input == kept_by_a_layer(True) == 4 * TOKENS * HIDDEN
    assert peak(1) == layer + in_flight, "in the last layer"
    assert peak(2, True) == 2 * own_input + layer + in_flight, "in the last layer, computed again"
    assert peak(2, vocabulary=4096) == 2 * layer + 12 * TOKENS * 4096, "as backward begins"
    trained = (layer + in_flight) // 2 // 4  # parameters: more than the inputs kept, less than a layer in backward
    held = 4 * (10 + 2 * trained)
    assert peak(2, True, parameters=10, trainable=trained) == held + 4 * trained + layer + in_flight, "in the first"
    assert peak(2, tokens=0, parameters=10, trainable=7) == 4 * (10 + 4 * 7), "in the step"
