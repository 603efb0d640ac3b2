import warnings

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.isolated

#: torch.cuda.get_arch_list() of torch's wheels on Linux, by the CUDA they are built for.
WHEELS = {
    "2.6.0+cu124": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",
    "2.7.0+cu126": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",
    "2.7.0+cu128": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
}
CARDS = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


def say_what_torch_says(monkeypatch, capability, arch_list):
    """Return what torch finds wrong, as it initializes CUDA, where a card and a wheel are these."""
    cuda = torch.cuda
    monkeypatch.setattr(torch.version, "cuda", torch.version.cuda or "12.4")
    monkeypatch.setattr(cuda, "get_arch_list", arch_list.split)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(cuda, "get_device_name", lambda device=None: "NVIDIA GeForce RTX 5070 Ti")
    checks = [cuda._check_capability, cuda._check_cubins]

    def check():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for one in checks:
                one()

    return check


def finds_fault(check):
    try:
        check()
    except UserWarning:
        return True
    return False


@pytest.mark.reproduces("no-kernel-for-card", fidelity="stand-in")
@pytest.mark.parametrize("wheel", ["2.6.0+cu124", "2.7.0+cu126"])
def test_torch_on_a_blackwell_workstation(monkeypatch, wheel):
    check = say_what_torch_says(monkeypatch, (12, 0), WHEELS[wheel])
    with act():
        check()


@pytest.mark.reproduces("no-kernel-for-card", expected="absent")
@pytest.mark.hw(capability=">=7.0")
def test_first_kernel_on_this_card():
    torch.cuda.init()
    with act():
        assert (torch.ones(4, device="cuda") * 2).sum().item() == 8


@pytest.mark.guards("no-kernel-for-card", fidelity="stand-in")
@pytest.mark.parametrize("capability", CARDS, ids="{0[0]}.{0[1]}".format)
@pytest.mark.parametrize("wheel", WHEELS)
def test_agrees_with_torch(subject, monkeypatch, wheel, capability):
    """torch's own check of these cards and wheels finds fault exactly where the remedy does."""
    check = say_what_torch_says(monkeypatch, capability, WHEELS[wheel])
    with act():
        said = subject(capability, WHEELS[wheel].split())
    assert bool(said) == finds_fault(check)
    if said:
        cuda = "cu128" if capability >= (10, 0) else "cu126"
        assert f"https://download.pytorch.org/whl/{cuda}" in said
        assert subject(capability, WHEELS[f"2.7.0+{cuda}"].split()) is None, "what it advises has no kernels either"


@pytest.mark.guards("no-kernel-for-card")
def test_the_installed_torch(subject, monkeypatch):
    """The list of a build for CUDA is there without a GPU; a build for CPUs has none, and nothing is said."""
    arch_list = torch.cuda.get_arch_list()
    with act():
        said = {capability: subject(capability) for capability in CARDS}
    if not arch_list:
        assert set(said.values()) == {None}
        return
    for capability, text in said.items():
        check = say_what_torch_says(monkeypatch, capability, " ".join(arch_list))
        assert bool(text) == finds_fault(check), f"{capability}: {text}"


@pytest.mark.guards("no-kernel-for-card")
@pytest.mark.hw(capability=">=7.0")
def test_nothing_is_said_and_this_card_computes(subject):
    with act():
        assert subject(torch.cuda.get_device_capability()) is None
        assert (torch.ones(4, device="cuda") * 2).sum().item() == 8


@pytest.mark.guards("no-kernel-for-card", fidelity="stand-in")
@pytest.mark.parametrize("wheel", WHEELS)
def test_preflight_names_the_cards(subject, monkeypatch, wheel):
    """``rlregress preflight --hw=PROFILE --installed``, with a wheel's list for the installed torch's."""
    from pytest_rlregress.commands.preflight.config import PlannedRun
    from pytest_rlregress.commands.preflight.rules import RULES
    from pytest_rlregress.hardware import load_profiles

    rule, _ = RULES["no-kernel-for-card"]
    monkeypatch.setattr("pytest_rlregress.remedies.missing_kernels", subject)
    for profile in (one for one in load_profiles().values() if one.capability):
        check = say_what_torch_says(monkeypatch, profile.capability, WHEELS[wheel])
        with act():
            found = list(rule(PlannedRun(capability=profile.capability)))
        assert bool(found) == finds_fault(check), f"{profile.id}: {found}"
        if found:
            assert found[0].instead.startswith("pip install torch --index-url https://")
