from mutants import broken, failing, replaces
from pytest_rlregress.remedies.torch_build import missing_kernels


@broken(only="agrees_with_torch")
def by_major_version_and_later(capability, arch_list=None):
    """Take a binary for what PTX is: good for every later card."""
    codes = [code.replace("sm_", "compute_") for code in arch_list or []]
    return missing_kernels(capability, codes)


@broken(only="preflight")
def nothing_is_missing(capability, arch_list=None):
    return None


replaces("absent", "torch.cuda._check_capability", only="workstation")(lambda: None)
replaces("absent", "torch.cuda._check_cubins", only="nothing")(lambda: None)
replaces("changed", "torch.cuda._check_capability", only="workstation")(
    failing(RuntimeError("CUDA driver version is insufficient for CUDA runtime version"))
)
