"""What the tests of goldens share: runs of a step, and a golden, that are made up."""

from __future__ import annotations

import msgspec

from pytest_rlregress.fixtures.step_measurements import NUMBERS
from pytest_rlregress.goldens.comparison import tolerances
from pytest_rlregress.goldens.golden import Golden
from pytest_rlregress.records.measurements import Key

KEY = Key("NVIDIA H100 80GB HBM3", "2.13", "vllm 0.31", "FLASH_ATTN 3", "bfloat16")
SETTINGS = {"learning_rate": 2e-3, "dtype": "bfloat16"}
STEPS = 6
VARIANTS = ("token", "sequence")
STEP = "miniature-step"


def run(variant="token", tokens="abcdef", off=0.0, up=0.0, **changes):
    """A run: each number of step i is i + 1 + ``up``, then ``off`` more or less in turn; a letter a step for tokens."""
    numbers = [i + 1 + up + off * (-1) ** i for i in range(STEPS)]
    found = {"step": STEP, "variant": variant, "steps": STEPS, **{name: list(numbers) for name in NUMBERS}}
    usage = {"step_seconds": [0.3] * STEPS, "tokens_per_second": [1000.0] * STEPS}
    return {**found, "sampled": list(tokens), **usage, "device_memory_bytes": 0, "host_memory_bytes": 10**9, **changes}


RECORDED = [run(variant) for variant in VARIANTS]
PERTURBED = [run(off=0.01), run("sequence", up=0.001)]
OTHERS = [run(tokens="ghijkl", off=1.0), run("sequence", tokens="ghijkl", up=0.1)]
GOLDEN = Golden(
    step=STEP,
    key=KEY,
    settings=SETTINGS,
    runs=RECORDED,
    tolerances=tolerances(RECORDED, RECORDED, PERTURBED, OTHERS),
    repeats={"repeated": 1, "perturbed": 1, "other_seeds": 1},
    origin={"date": "2027-03-14T02:15:00Z", "commit": "3f9a1c", "versions": {"torch": "2.13.0"}},
)


def but(**changes):
    return [run(**changes), RECORDED[1]]


def keep(folder, golden=GOLDEN, name=None):
    path = folder / (name or golden.file)
    path.write_bytes(msgspec.json.encode(golden))
    return path
