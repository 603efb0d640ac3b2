from mutants import broken, failing, mutant, replaces
from pytest_rlregress.remedies.torch_build import missing_kernels


@broken(only="agrees_with_torch")
def by_major_version_and_later(capability, arch_list=None):
    """Take a binary for what PTX is: good for every later card."""
    codes = [code.replace("sm_", "compute_") for code in arch_list or []]
    return missing_kernels(capability, codes)


@broken(only="preflight")
def nothing_is_missing(capability, arch_list=None):
    return None


@mutant("absent", only="workstation")
def wheels_for_every_card(monkeypatch):
    from pytest_rlregress.scenarios.dependencies.no_kernel_for_card import test_no_kernel_for_card as tests

    every = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
    monkeypatch.setattr(tests, "WHEELS", dict.fromkeys(tests.WHEELS, every))


replaces("changed", "torch.cuda._check_capability", only="workstation")(
    failing(RuntimeError("CUDA driver version is insufficient for CUDA runtime version"))
)
