from mutants import broken, replaces
from pytest_rlregress.remedies.dependencies import cuda_arch_list


@broken(only="-12.0]")
def without_ptx(capability):
    return cuda_arch_list(capability).removesuffix("+PTX")


@broken(only="-9.0]")
def always_blackwell(capability):
    return "12.0+PTX"


@replaces("absent", "torch.utils.cpp_extension._get_cuda_arch_flags")
def all_known_architectures(original, cflags=None):
    try:
        return original(cflags)
    except Exception:  # no GPU to ask, or a list that torch does not know
        return ["-arch=all"]


@replaces("changed", "torch.utils.cpp_extension._get_cuda_arch_flags")
def the_toolkit_is_missing():
    raise OSError("CUDA_HOME environment variable is not set")
