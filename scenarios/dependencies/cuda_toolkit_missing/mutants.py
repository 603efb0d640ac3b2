from pathlib import Path

from mutants import broken, failing, replaces
from pytest_rlregress.remedies.torch_build import missing_cuda_toolkit


@broken(only="agrees_with_torch")
def any_nvcc(home=None, cuda=None):
    """Look for nvcc, whatever its release."""
    return None if home and Path(home, "bin/nvcc").exists() else missing_cuda_toolkit(home, cuda)


@broken(only="told_apart")
def asks_for_cuda_home(home=None, cuda=None):
    return missing_cuda_toolkit(home, cuda) and "Set CUDA_HOME."


replaces("absent", "torch.utils.cpp_extension._join_cuda_home", only="setup_of")(
    lambda *paths: str(Path("/usr", *paths))
)
replaces("changed", "torch.utils.cpp_extension._join_cuda_home", only="setup_of")(
    failing(PermissionError("/usr/local/cuda/lib64"))
)
