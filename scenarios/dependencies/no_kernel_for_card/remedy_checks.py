"""Kinds of architectures that no wheel of today has alone."""

import pytest


@pytest.mark.parametrize(
    ("arch_list", "runs"),
    [
        (["sm_90", "compute_90"], True),  # PTX, which the driver compiles for later cards
        (["sm_90", "compute_120"], True),
        (["sm_121"], False),
        (["sm_120a"], True),
        (["sm_100f"], False),
        (["compute_90a"], False),
        (["gfx942"], True),  # ROCm's names say nothing about NVIDIA's cards
        ([], True),
    ],
    ids=str,
)
def test_a_card_of_12_0(subject, arch_list, runs):
    assert (subject((12, 0), arch_list) is None) == runs


def test_advises_an_earlier_cuda_for_an_earlier_card(subject):
    assert "whl/cu126" in subject((7, 0), ["sm_75", "sm_80", "sm_120"])
