"""The documented settings do or do not fit their cards."""

import pytest

from pytest_rlregress.scenarios.memory.trainer import GPT_OSS_20B, QWEN_30B_A3B
from pytest_rlregress.scenarios.memory.trainer_engine_oom.test_trainer_engine_oom import (
    CHECKPOINTED,
    GIB,
    LORA_7B,
    left,
)

PLAIN = {**LORA_7B, "tokens": 4096, "checkpointing": False}


@pytest.mark.parametrize(
    ("sizes", "room", "fits"),
    [
        (CHECKPOINTED, left("h100", 0.50), True),
        (PLAIN, left("h100", 0.45), False),
        ({**CHECKPOINTED, **GPT_OSS_20B}, left("a6000", 0) - 42.83e9, False),
        ({**CHECKPOINTED, **QWEN_30B_A3B, "bytes_per_weight": 2}, left("h100", 0.50), False),
    ],
    ids=["7b-shared-h100", "7b-without-checkpointing", "20b-beside-the-engine", "30b-on-one-card"],
)
def test_documented_settings(subject, sizes, room, fits):
    needed = subject(**sizes)
    assert (needed <= room) == fits, f"{needed / GIB:.1f} GiB in {room / GIB:.1f} GiB"
