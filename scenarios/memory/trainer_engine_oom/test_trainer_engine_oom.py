import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.hardware.profiles import load_profiles
from pytest_rlregress.scenarios.memory.trainer import (
    KEYS,
    QWEN_7B,
    QWEN_HALF_B,
    SMALL,
    at_most,
    build,
    count,
    known,
    train,
)
from pytest_rlregress.stack.lazy import torch

GIB = 2**30
LORA_7B = {**QWEN_7B, "parameters": 7_635_801_600, "trainable": 20_185_088}  # r8 on every linear layer
CHECKPOINTED = {**LORA_7B, "tokens": 2048, "checkpointing": True}
CARD = pytest.mark.hw(capability=">=8.0", memory=">=79GiB")
ROOM = 80 * 2**20  # SMALL takes more for 1024 tokens, and with checkpointing less


def left(profile, share):
    return load_profiles()[profile].memory_gib * GIB * (1 - share)


@pytest.mark.isolated
@pytest.mark.reproduces("trainer-engine-oom")
def test_memory_runs_out():
    model = build(SMALL, lora=True, checkpointing=False, dtype="float32")
    with act(), at_most(ROOM):
        train(model, tokens=1024)


@pytest.mark.isolated
@pytest.mark.guards("trainer-engine-oom")
@pytest.mark.needs("peft")
def test_prediction_says_when_to_checkpoint(subject):
    with act():
        needed = subject(
            **known(SMALL, lora=True), tokens=1024, checkpointing=False, bytes_per_weight=4, bytes_per_activation=4
        )
    model = build(SMALL, lora=True, checkpointing=needed > ROOM, dtype="float32")
    with at_most(ROOM):
        train(model, tokens=1024)


@pytest.mark.reproduces("trainer-engine-oom")
def test_nothing_counts_beforehand():
    with act():
        two, three = (count({**QWEN_7B, "num_hidden_layers": layers}, True, False, 4096) for layers in (2, 3))
    needed = two + (QWEN_7B["num_hidden_layers"] - 2) * (three - two) + 2 * LORA_7B["parameters"]  # float32 weights
    if not needed <= left("h100", 0.45):
        silent(
            f"nothing says before the first step that it takes {needed / GIB:.1f} GiB "
            f"where the engine leaves {left('h100', 0.45) / GIB:.1f} GiB"
        )


@pytest.mark.guards("trainer-engine-oom")
@pytest.mark.needs("peft")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize(
    ("size", "lora", "tokens", "dtype"),
    [
        (QWEN_7B, True, 2048, "bfloat16"),
        (QWEN_HALF_B, False, 2048, "bfloat16"),
        ({**QWEN_HALF_B, "vocab_size": 32_000}, True, 4096, "float32"),
    ],
    ids=["7b-lora", "0.5b", "0.5b-lora-float32"],
)
def test_prediction_is_what_is_counted(subject, size, lora, tokens, dtype, checkpointing):
    size, width = {**size, "num_hidden_layers": 2}, {"bfloat16": 2, "float32": 4}[dtype]
    widths = {"bytes_per_weight": width, "bytes_per_activation": width}
    with act():
        predicted = subject(**known(size, lora), tokens=tokens, checkpointing=checkpointing, **widths)
    assert predicted == pytest.approx(count(size, lora, checkpointing, tokens, dtype), rel=0.02)


@pytest.mark.guards("trainer-engine-oom")
@pytest.mark.needs("peft")
@pytest.mark.parametrize(
    ("sizes", "lora", "checkpointing", "tokens"),
    [
        ((3, 896, 896, 128), True, False, 4096),
        ((12, 896, 896, 128), True, True, 4096),
        ((2, 896, 4864, 128), False, True, 2048),
        ((4, 896, 4864, 128), False, True, 512),
    ],
    ids=["last-layer", "last-layer-computed-again", "first-layer", "step"],
)
def test_peaks_elsewhere_than_in_the_loss(subject, sizes, lora, checkpointing, tokens):
    """With a small vocabulary; as measured such a prediction is 4 % too low up to 9 % too high."""
    size = dict(zip(KEYS, sizes, strict=True))
    with act():
        predicted = subject(**known(size, lora), tokens=tokens, checkpointing=checkpointing, bytes_per_weight=2)
    assert 0.95 <= predicted / count(size, lora, checkpointing, tokens) <= 1.1


def hold_beside_7b(share):
    """On the GPU: the engine's share, and what float32 weights take beyond the bfloat16 ones that are trained here.

    Of a larger card also what it has more than the documented one.
    """
    total, documented = torch.cuda.get_device_properties(0).total_memory, int(left("h100", 0))
    held = max(0, total - documented) + int(share * min(total, documented)) + 2 * LORA_7B["parameters"]
    return torch.empty(held, dtype=torch.uint8, device="cuda")


@CARD
@pytest.mark.isolated
@pytest.mark.reproduces("trainer-engine-oom")
def test_7b_without_checkpointing_on_gpu():
    held = hold_beside_7b(0.45)
    with act():
        train(build(QWEN_7B, True, False, "cuda"), 4096)
    del held


@CARD
@pytest.mark.isolated
@pytest.mark.guards("trainer-engine-oom")
def test_7b_with_checkpointing_on_gpu(subject):
    held = hold_beside_7b(0.50)
    with act():
        train(build(QWEN_7B, True, True, "cuda"), 2048)
        needed = torch.cuda.max_memory_allocated() - held.numel()
        assert subject(**CHECKPOINTED, bytes_per_weight=2) == pytest.approx(needed, rel=0.1)
