import sys

from mutants import broken, failing, replaces
from pytest_rlregress.stack.lazy import torch


@broken(only="test_choice[")
def as_torch_says():
    torch = sys.modules["torch"]
    return "spawn" if torch.cuda.is_initialized() else "fork"


@broken(only="test_choice_without_cuda")
def always_spawn():
    return "spawn"


replaces("absent", "vllm.utils.system_utils.cuda_is_initialized", only="test_worker_of")(
    lambda: torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork()
)
replaces("changed", "torch.cuda.init", only="test_worker_of")(
    failing(RuntimeError("CUDA error: unspecified launch failure"))
)
