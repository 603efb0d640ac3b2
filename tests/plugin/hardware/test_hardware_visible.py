"""CUDA_VISIBLE_DEVICES, applied to what NVML lists as CUDA would apply it."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys

import pytest

from pytest_rlregress.hardware import nvml
from pytest_rlregress.hardware.nvml import Card, Gpu


def card(index: int, name: str = "NVIDIA H100 80GB HBM3", uuid: str = "") -> Card:
    uuid = uuid or f"GPU-{index}aaa-1111"
    return Card(uuid, (Gpu(index, name, (9, 0), 81559 * 2**20, uuid),))


H100S = [card(0), card(1), card(2)]


@pytest.mark.parametrize(
    ("setting", "indices", "note"),
    [
        ("", [], "CUDA_VISIBLE_DEVICES='' hides all 3 GPUs"),
        ("-1", [], "'-1' is none of the 3 GPUs"),
        ("1", [1], ""),
        ("2,0", [2, 0], ""),
        ("0,7,1", [0], "CUDA_VISIBLE_DEVICES='0,7,1': '7' is none of the 3 GPUs, and CUDA reads no further"),
        ("0,1,0", [], "names '0' twice"),
        ("GPU-1aaa", [1], ""),
        ("GPU-9", [], "'GPU-9' is none of"),
        ("GPU-", [], "'GPU-' is none of"),  # ambiguous
        ("GPU-0aaa,1", [0], "'1' is none of"),  # of one kind
        ("GPU-0aaa, GPU-1aaa", [0], "' GPU-1aaa' is none of"),  # torch and CUDA take no blank there
    ],
)
def test_reads_each_form_of_cuda_visible_devices(setting, indices, note):
    gpus, notes = nvml.visible(H100S, setting, None)
    assert [gpu.index for gpu in gpus] == indices
    assert len(notes) == bool(note)
    assert note in "".join(notes)


def test_unset_variable_shows_all_cards():
    assert [gpu.index for gpu in nvml.visible(H100S, None, None)[0]] == [0, 1, 2]


def test_indices_among_different_cards_are_ambiguous():
    unlike = [card(0, "NVIDIA T400"), card(1)]
    note = "set CUDA_DEVICE_ORDER=PCI_BUS_ID or name a UUID"
    assert note in nvml.visible(unlike, "0", None)[1][0]
    assert note in nvml.visible(unlike, "0", "FASTEST_FIRST")[1][0]
    assert nvml.visible(unlike, "GPU-0", None)[1] == []
    assert nvml.visible(unlike, "0", "PCI_BUS_ID")[1] == []
    assert nvml.visible(H100S, "0", None)[1] == []


TORCH = """
import json, os, sys
from torch.cuda import _parse_visible_devices, _transform_uuid_to_ordinals
uuids, settings = json.load(sys.stdin)
answers = []
for os.environ["CUDA_VISIBLE_DEVICES"] in settings:
    wanted = _parse_visible_devices()
    if wanted and isinstance(wanted[0], str):
        answers.append(_transform_uuid_to_ordinals(wanted, uuids))
    else:
        answers.append(wanted)
json.dump(answers, sys.stdout)
"""


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is the oracle")
def test_agrees_with_torch():
    uuids = ["GPU-aa1", "GPU-aa2", "GPU-b", "GPU-c"]
    cards = [card(i, uuid=uuid) for i, uuid in enumerate(uuids)]
    numbers = ["0", "1", "2", "3", " 1", "+2", "1x", "-1", "x", ""]
    draw = random.Random(0)
    settings = [",".join(draw.choices(pool, k=draw.randint(1, 4))) for pool in (numbers, uuids) for _ in range(500)]
    # Without repetition: torch looks for repeated entries before it looks for invalid ones.
    mixed = [*numbers, *uuids, "GPU-a", "GPU-", "MIG-1", " GPU-b"]
    settings += [",".join(draw.sample(mixed, k=draw.randint(1, 4))) for _ in range(2000)]
    run = subprocess.run(
        [sys.executable, "-c", TORCH],
        input=json.dumps([uuids, settings]),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    ours = [[gpu.index for gpu in nvml.visible(cards, setting, None)[0]] for setting in settings]
    theirs = json.loads(run.stdout)
    assert [x for x in zip(settings, ours, theirs, strict=True) if x[1] != x[2]] == []
    assert len({tuple(answer) for answer in theirs}) > 20  # the oracle was really asked
