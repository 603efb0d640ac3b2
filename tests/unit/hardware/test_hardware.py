"""Machines matched to profiles: what a user asks for and gets, or which error."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_rlregress import hardware
from pytest_rlregress.hardware import Gpu, HardwareError, Machine

MIB = 2**20
PROFILES = hardware.load_profiles()
NO_GPU = Machine(note="no NVIDIA driver: libnvidia-ml.so.1 was not found")

# As nvidia-smi prints them: name, capability, memory in MiB, and the profile that each is of.
CARDS = [
    ("NVIDIA H100 80GB HBM3", (9, 0), 81559, "h100"),
    ("NVIDIA H100 PCIe", (9, 0), 81559, "h100"),
    ("NVIDIA H100 NVL", (9, 0), 95830, "h100"),
    ("NVIDIA H200", (9, 0), 143771, "h200"),
    ("NVIDIA H200 NVL", (9, 0), 143771, "h200"),
    ("NVIDIA H20", (9, 0), 97871, "h20"),
    ("NVIDIA H20-3e", (9, 0), 143771, "h20"),
    ("NVIDIA B200", (10, 0), 183359, "b200"),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 40536, "a100"),
    ("A100-SXM4-40GB", (8, 0), 40536, "a100"),
    ("NVIDIA A100-SXM4-80GB", (8, 0), 81920, "a100"),
    ("NVIDIA A100 80GB PCIe", (8, 0), 81920, "a100"),
    ("NVIDIA A100-PCIE-40GB", (8, 0), 40960, "a100"),
    ("NVIDIA RTX A6000", (8, 6), 49140, "a6000"),
    ("NVIDIA RTX A6000", (8, 6), 46068, "a6000"),
    ("NVIDIA L4", (8, 9), 23034, "l4"),
    ("NVIDIA GeForce RTX 5070 Ti", (12, 0), 16303, "rtx-5070-ti"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", (12, 0), 97887, "rtx-pro-6000-blackwell"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), 97887, "rtx-pro-6000-blackwell"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 97887, "rtx-pro-6000-blackwell"),
    ("Tesla T4", (7, 5), 15109, "t4"),
    ("Tesla T4", (7, 5), 15360, "t4"),
    ("NVIDIA T4G", (7, 5), 15360, None),
    ("Tesla V100-SXM2-16GB", (7, 0), 16160, None),
    ("NVIDIA GH200 120GB", (9, 0), 97871, None),
    ("NVIDIA H800", (9, 0), 81559, None),
    ("NVIDIA GB200", (10, 0), 189471, None),
    ("NVIDIA A800 80GB PCIe", (8, 0), 81920, None),
    ("NVIDIA A40", (8, 6), 46068, None),
    ("NVIDIA L40S", (8, 9), 46068, None),
    ("NVIDIA RTX 6000 Ada Generation", (8, 9), 49140, None),
    ("NVIDIA GeForce RTX 5070", (12, 0), 12227, None),
    ("NVIDIA GeForce RTX 5070 Ti Laptop GPU", (12, 0), 12227, None),
    ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", (8, 0), 40192, None),
]


def card(name: str, index: int = 0, **changes) -> Gpu:
    capability, mib = next((c, m) for n, c, m, _ in CARDS if n == name)
    gpu = Gpu(index, name, capability, mib * MIB, f"GPU-{index}", mig="MIG" in name)
    return replace(gpu, **changes)


def machine(*names: str) -> Machine:
    return Machine(tuple(card(name, index) for index, name in enumerate(names)), "580.159.04")


H100, H200, L40S = (machine(n) for n in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L40S"))
SLICE = machine("NVIDIA A100-SXM4-80GB MIG 3g.40gb")


@pytest.mark.parametrize(("name", "capability", "mib", "expected"), CARDS)
def test_each_card_matches_only_its_profile(name, capability, mib, expected):
    found = hardware.match(Machine((Gpu(0, name, capability, mib * MIB, "GPU-0", mig="MIG" in name),)), PROFILES)
    assert (found.id if found else None) == expected


# -- choosing a profile


def test_selects_the_profile_of_this_machine_or_the_named_one():
    assert hardware.select("auto", H200, PROFILES).id == "h200"
    assert hardware.select("auto", NO_GPU, PROFILES).id == "cpu"
    assert hardware.select("H200", H200, PROFILES).id == "h200"
    assert hardware.select("cpu", H200, PROFILES).id == "cpu"


@pytest.mark.parametrize(
    ("hw", "found", "message"),
    [
        (
            "h100",
            H200,
            "--hw=h100 asks for NVIDIA H100, but this machine has NVIDIA H200 (capability 9.0, 140.4 GiB). "
            "Profiles that fit here: h200, cpu.",
        ),
        (
            "h100",
            NO_GPU,
            "--hw=h100 asks for NVIDIA H100, but this machine has no GPU (no NVIDIA driver: libnvidia-ml.so.1 was not "
            "found). Profiles that fit here: cpu.",
        ),
        (
            "a100",
            SLICE,
            "--hw=a100 asks for NVIDIA A100, but this machine has NVIDIA A100-SXM4-80GB MIG 3g.40gb (MIG slice, "
            "capability 8.0, 39.2 GiB). A MIG slice is not the whole card. Profiles that fit here: cpu. "
            "--hw=auto says how to add a profile for it.",
        ),
        (
            "h100",
            Machine((card("NVIDIA H100 PCIe", memory_bytes=40000 * MIB),)),
            "--hw=h100 asks for NVIDIA H100, but this machine has NVIDIA H100 PCIe (capability 9.0, 39.1 GiB). "
            "It has 39.1 GiB, not 79 GiB. Profiles that fit here: cpu. --hw=auto says how to add a profile for it.",
        ),
        (
            "h10",
            H100,
            "--hw=h10 isn't a hardware profile. Did you mean h100 or h20? Allowed: auto, list, a100, a6000, b200, cpu, "
            "h100, h20, h200, l4, rtx-5070-ti, rtx-pro-6000-blackwell, t4.",
        ),
    ],
)
def test_rejects_a_profile_of_another_machine(hw, found, message):
    with pytest.raises(HardwareError) as refused:
        hardware.select(hw, found, PROFILES)
    assert str(refused.value) == message


def test_unknown_card_gets_a_profile_that_works(tmp_path):
    with pytest.raises(HardwareError) as refused:
        hardware.select("auto", L40S, PROFILES)
    message, _, toml = str(refused.value).partition("\n\n")
    assert message.startswith("No hardware profile matches NVIDIA L40S (capability 8.9, 45.0 GiB). To add one, ")
    assert "ini rlregress_hardware" in message
    (tmp_path / "l40s.toml").write_text(toml)
    profiles = hardware.load_profiles([tmp_path])
    assert hardware.select("auto", L40S, profiles).id == "l40s"
    assert profiles["l40s"].features == ("bf16", "fp8")
    assert profiles["l40s"].step["dtype"] == "bfloat16"
    assert hardware.select("auto", machine("NVIDIA L4"), profiles).id == "l4"


def test_a_card_without_bfloat16_gets_a_step_without_it(tmp_path):
    v100 = machine("Tesla V100-SXM2-16GB")
    (tmp_path / "v100.toml").write_text(hardware.profile_template(v100.gpus[0], PROFILES))
    found = hardware.select("auto", v100, hardware.load_profiles([tmp_path]))
    assert (found.id, found.features, found.step["dtype"]) == ("v100", (), "float16")


def test_a_name_is_taken_literally(tmp_path):
    odd = Machine((replace(L40S.gpus[0], name="NVIDIA X+ (engineering sample)"),))
    (tmp_path / "odd.toml").write_text(hardware.profile_template(odd.gpus[0], PROFILES))
    assert hardware.select("auto", odd, hardware.load_profiles([tmp_path])).id == "odd"


def test_a_name_with_another_capability():
    forged = Machine((card("NVIDIA H100 PCIe", capability=(8, 0)),))
    with pytest.raises(HardwareError, match=r"It is not h100: its capability is 8\.0, not 9\.0\."):
        hardware.select("auto", forged, PROFILES)


def test_a_slice_has_a_profile_only_if_one_says_mig(tmp_path):
    toml = hardware.profile_template(SLICE.gpus[0], PROFILES)
    (tmp_path / "any-a100.toml").write_text(re.sub("nvml_names.*", 'nvml_names = ["NVIDIA A100.*3g.*"]', toml))
    profiles = hardware.load_profiles([tmp_path])
    with pytest.raises(HardwareError, match=r"not any-a100: a MIG slice is not the whole card|No hardware profile"):
        hardware.select("auto", SLICE, profiles)
    whole = Machine((replace(SLICE.gpus[0], mig=False),))  # the mutant: taken for a card, it would match
    assert hardware.match(whole, profiles).id == "any-a100"
    (tmp_path / "any-a100.toml").write_text(toml)
    assert hardware.select("auto", SLICE, hardware.load_profiles([tmp_path])).id == "any-a100"


def test_rejects_a_machine_with_different_cards():
    mixed = machine("NVIDIA H100 80GB HBM3", "NVIDIA RTX A6000", "NVIDIA L40S")
    for hw in ("auto", "h100"):
        with pytest.raises(HardwareError, match=r"are of 3 models.*CUDA_VISIBLE_DEVICES.*\n  GPU-0  NVIDIA H100 80"):
            hardware.select(hw, mixed, PROFILES)
    assert hardware.select("cpu", mixed, PROFILES).id == "cpu"
    same = machine("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB")
    assert hardware.select("auto", same, PROFILES).id == "a100"


def test_rejects_two_profiles_for_one_card(tmp_path):
    (tmp_path / "mine.toml").write_text(hardware.profile_template(H100.gpus[0], PROFILES))
    with pytest.raises(HardwareError, match=r"profiles h100 \(.*h100.toml\) and mine \(.*mine.toml\) both match"):
        hardware.match(H100, hardware.load_profiles([tmp_path]))


# -- what is printed


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (H200, ["GPU 0: NVIDIA H200 (capability 9.0, 140.4 GiB)", "driver 580.159.04", "is --hw=h200 (NVIDIA H200)"]),
        (NO_GPU, ["no NVIDIA driver", "--hw=auto is --hw=cpu (CPU)"]),
        (L40S, ["No hardware profile matches NVIDIA L40S", 'nvml_names = ["NVIDIA L40S"]', "[step]"]),
        (SLICE, ["MIG slice, capability 8.0", "It is not a100: a MIG slice is not the whole card."]),
        (machine("NVIDIA RTX A6000", CARDS[18][0]), ["are of 2 models", f"  GPU-1  {CARDS[18][0]}"]),
    ],
)
def test_describes_this_machine(found, expected):
    text = hardware.describe_machine(found, PROFILES)
    assert [part for part in expected if part not in text.replace("\n", " ") and part not in text] == []
    assert max(map(len, text.splitlines())) <= 100


def test_lists_all_profiles_and_marks_those_that_fit():
    lines = hardware.describe_profiles(PROFILES, H200).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[1] for line in lines[1:-1] if line.startswith("*")] == ["cpu", "h200"]
    assert next(line for line in lines if " h100 " in line).split() == [
        *("h100", "NVIDIA", "H100", "9.0", "79", "GiB", "bf16", "fp8", "bfloat16")
    ]
