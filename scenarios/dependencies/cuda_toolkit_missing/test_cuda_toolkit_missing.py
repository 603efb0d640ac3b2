import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.isolated  # torch looks for the toolkit as its module is imported


def look_for_toolkit(monkeypatch, home):
    """Let torch look as a build for CUDA does, with ``home`` for CUDA_HOME, or with nothing to be found."""
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "IS_WINDOWS", False)
    if home:
        monkeypatch.setenv("CUDA_HOME", str(home))
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", cpp_extension._find_cuda_home())
    else:
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    return cpp_extension


def make_toolkit(folder, release):
    """Write a toolkit's folder with an nvcc of a few lines, which says its release as NVIDIA's does."""
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    (folder / "lib64").mkdir()
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.93'\n")
    nvcc.chmod(0o755)
    return folder


def extension(cpp_extension):
    return cpp_extension.CUDAExtension("kernels", ["kernels.cu"])


@pytest.mark.reproduces("cuda-toolkit-missing")
def test_setup_of_an_extension(monkeypatch):
    """What setup.py of flash-attn and of Apex calls."""
    cpp_extension = look_for_toolkit(monkeypatch, None)
    with act():
        extension(cpp_extension)


@pytest.mark.reproduces("cuda-toolkit-missing")
def test_extension_built_while_running(monkeypatch, tmp_path):
    """What builds its kernels when they are first used, as DeepSpeed does."""
    cpp_extension = look_for_toolkit(monkeypatch, None)
    source = tmp_path / "kernels.cu"
    source.write_text("__global__ void nothing() {}\n")
    with act():
        cpp_extension.load("kernels", [str(source)], build_directory=str(tmp_path))


@pytest.mark.reproduces("cuda-toolkit-missing", fidelity="stand-in")
def test_toolkit_of_another_cuda(monkeypatch, tmp_path):
    cpp_extension = look_for_toolkit(monkeypatch, make_toolkit(tmp_path, "13.0"))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with act():
        cpp_extension._check_cuda_version("g++", torch.torch_version.TorchVersion("13.0.0"))


@pytest.mark.guards("cuda-toolkit-missing", fidelity="stand-in")
def test_toolkit_that_is_named_is_found(subject, monkeypatch, tmp_path):
    """torch takes the folder in CUDA_HOME, for setup.py and for the linker."""
    home = make_toolkit(tmp_path, "12.8")
    cpp_extension = look_for_toolkit(monkeypatch, home)
    with act():
        assert subject(str(home), "12.8") is None
        made = extension(cpp_extension)
    assert any(str(path).startswith(str(home)) for path in made.library_dirs)


TOOLKITS = {
    "torch's": ("12.8", "12.8"),
    "minor": ("12.6", "12.8"),
    "later": ("13.0", "12.8"),
    "old": ("11.8", "12.8"),
}


@pytest.mark.guards("cuda-toolkit-missing", fidelity="stand-in")
@pytest.mark.parametrize(("release", "cuda"), [*TOOLKITS.values(), (None, "12.8")], ids=[*TOOLKITS, "no-nvcc"])
def test_agrees_with_torch_on_a_toolkit(subject, monkeypatch, tmp_path, release, cuda):
    """torch's own check before a build refuses exactly the toolkits that the remedy does."""
    home = make_toolkit(tmp_path / "cuda", release) if release else tmp_path
    cpp_extension = look_for_toolkit(monkeypatch, home)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with act():
        said = subject(str(home), cuda)
    try:
        cpp_extension._check_cuda_version("g++", torch.torch_version.TorchVersion("11.4.0"))
    except (RuntimeError, FileNotFoundError):
        assert said, "torch refuses this toolkit and nothing is said"
        assert f"the CUDA toolkit {cuda}" in said
    else:
        assert said is None


@pytest.mark.guards("cuda-toolkit-missing")
def test_installed_torch_is_told_apart(subject, monkeypatch):
    """A build for CPUs takes no toolkit, which is something else than a toolkit that isn't there."""
    look_for_toolkit(monkeypatch, None)
    with act():
        said = subject()
    assert ("built for CPUs" if torch.version.cuda is None else "No CUDA toolkit is found") in said


@pytest.mark.guards("cuda-toolkit-missing")
@pytest.mark.needs("transformers")
def test_sdpa_trains_without_a_toolkit(monkeypatch, tiny_qwen):
    from transformers import AutoModelForCausalLM

    look_for_toolkit(monkeypatch, None)
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    with act():
        model = AutoModelForCausalLM.from_pretrained(tiny_qwen.directory, attn_implementation="sdpa")
        ids = torch.arange(100, 124).view(2, 12)
        model(input_ids=ids, labels=ids).loss.backward()
    assert model.config._attn_implementation == "sdpa"
    gradient = model.model.layers[0].self_attn.q_proj.weight.grad
    assert gradient.isfinite().all()
    assert gradient.any()
