"""The hw marker: what a test asks of the hardware."""

from __future__ import annotations

import re

import pytest

from pytest_rlregress import hardware
from pytest_rlregress.failures.catalogue import SHIPPED
from pytest_rlregress.hardware import Gpu, HardwareError, Machine

PROFILES = hardware.load_profiles()


def machine(*cards: tuple[str, tuple[int, int], int | None]) -> Machine:
    return Machine(tuple(Gpu(i, name, cc, mib and mib * 2**20, f"GPU-{i}") for i, (name, cc, mib) in enumerate(cards)))


NO_GPU = Machine(note="no NVIDIA driver")
H100 = machine(("NVIDIA H100 80GB HBM3", (9, 0), 81559))
TWO_H100 = machine(*[("NVIDIA H100 80GB HBM3", (9, 0), 81559)] * 2)
H200 = machine(("NVIDIA H200", (9, 0), 143771))
A100 = machine(("NVIDIA A100-SXM4-80GB", (8, 0), 81920))
BOTH_A100 = machine(("NVIDIA A100-SXM4-80GB", (8, 0), 81920), ("NVIDIA A100-SXM4-40GB", (8, 0), 40536))
L4 = machine(("NVIDIA L4", (8, 9), 23034))
UNKNOWN_MEMORY = machine(("NVIDIA L4", (8, 9), None))
RTX_5070_TI = machine(("NVIDIA GeForce RTX 5070 Ti", (12, 0), 16303))


def test_no_shipped_test_is_pinned_to_a_model_of_card():
    """Capability and memory say what a test needs; only the CPU is asked for by name."""
    pinned = re.compile(r"""\bmark\.hw\(\s*["'](?!cpu["'])""")
    tests = {path: path.read_text(encoding="utf-8") for path in SHIPPED.glob("**/*.py")}
    assert any("mark.hw(" in text for text in tests.values())
    assert [str(path) for path, text in tests.items() if pinned.search(text)] == []


@pytest.mark.parametrize(
    ("args", "kwargs", "hw", "found", "reason"),
    [
        (("h100", "h200"), {}, "h200", H200, None),
        (("h100", "h20"), {}, "h200", H200, "h100 or h20, this run is --hw=h200"),
        ((), {"capability": ">=9.0"}, "h200", H200, None),
        # As text "12.0" is below "9.0".
        ((), {"capability": ">=9.0"}, "rtx-5070-ti", RTX_5070_TI, None),
        ((), {"capability": ">=9.0"}, "l4", L4, "capability >=9.0, NVIDIA L4 has 8.9"),
        ((), {"capability": ">=8.0,<9"}, "l4", L4, None),
        ((), {"memory": ">=70GiB"}, "a100", A100, None),
        # 80 GiB are 85.9 GB.
        ((), {"memory": ">=82GiB"}, "a100", A100, "memory >=82GiB, NVIDIA A100-SXM4-80GB has 80.0 GiB"),
        ((), {"memory": ">=82GB"}, "a100", A100, None),
        ((), {"memory": ">=70GiB"}, "a100", BOTH_A100, "memory >=70GiB, NVIDIA A100-SXM4-40GB has 39.6 GiB"),
        ((), {"memory": "< 20 GB"}, "rtx-5070-ti", RTX_5070_TI, None),
        ((), {"memory": ">1GiB"}, "l4", UNKNOWN_MEMORY, "memory >1GiB, NVIDIA L4 has memory not reported"),
        ((), {"count": 2}, "h100", H100, "2 GPUs, 1 visible"),
        ((), {"count": 2}, "h100", TWO_H100, None),
        ((), {"feature": "fp8"}, "a100", A100, "fp8, which NVIDIA A100 does not have"),
        ((), {"feature": "fp8"}, "h100", H100, None),
        ((), {"capability": ">=9.0", "count": 2}, "h100", H100, "2 GPUs, 1 visible"),
        ((), {}, "h100", H100, None),
        ((), {}, "cpu", H100, "a GPU, this run is --hw=cpu"),
        ((), {"capability": ">=1.0"}, "cpu", H100, "a GPU, this run is --hw=cpu"),
        (("h100",), {}, "cpu", H100, "h100, this run is --hw=cpu"),
        (("h100", "cpu"), {"count": 2}, "cpu", NO_GPU, None),
    ],
)
def test_hw_marker_says_why_a_test_cannot_run(args, kwargs, hw, found, reason):
    assert hardware.unmet(args, kwargs, PROFILES[hw], found, known=PROFILES) == reason


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("h10O",), {}, r"hw\('h10O'\): no such hardware profile. Allowed: a100, a6000"),
        ((["h100"],), {}, r"hw\(\['h100'\]\): no such hardware profile"),
        ((), {"capabilities": ">=9"}, r"hw\(capabilities=…\): unknown keyword. Allowed: capability, memory, count"),
        ((), {"capability": "9.0"}, r"hw\(capability='9.0'\): not a comparison. Allowed: like '>=9.0'"),
        ((), {"capability": 9.0}, r"hw\(capability=9.0\)"),
        ((), {"capability": ""}, r"hw\(capability=''\)"),
        ((), {"memory": ">=70"}, r"hw\(memory='>=70'\): not a comparison. Allowed: like '>=70GiB'"),
        ((), {"memory": 70}, r"hw\(memory=70\)"),
        ((), {"count": "2"}, r"hw\(count='2'\): not a number of GPUs"),
        ((), {"count": True}, r"hw\(count=True\)"),
        ((), {"feature": "nvlink"}, r"hw\(feature='nvlink'\): unknown feature. Allowed: bf16, fp8, fp4"),
    ],
)
@pytest.mark.parametrize("hw", ["h100", "cpu"])  # a mistake is one also where the test would not run
def test_rejects_a_malformed_hw_marker(args, kwargs, message, hw):
    with pytest.raises(HardwareError, match=message):
        hardware.unmet(args, kwargs, PROFILES[hw], H100, known=PROFILES)
