import sys

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.dependencies import wheel_index

LINUX = "py3-none-manylinux2014_x86_64"
ON_LINUX = '; platform_system == "Linux" and platform_machine == "x86_64"'
FOR_LINUX = ' ; sys_platform == "linux"'


@pytest.fixture
def index(tmp_path):
    """An index with torch 2.5.1 and what it brings, in the wheels that PyPI has."""
    folder = tmp_path / "index"
    folder.mkdir()
    brings = [
        f"nvidia-nccl-cu12==2.21.5{ON_LINUX}",
        f"nvidia-cublas-cu12==12.4.5.8{ON_LINUX}",
        "filelock",
    ]
    wheel_index.wheel(folder, "torch", "2.5.1", brings)
    wheel_index.wheel(folder, "filelock", "3.16.1")
    wheel_index.wheel(folder, "nvidia-cublas-cu12", "12.4.5.8", tag=LINUX)
    wheel_index.wheel(folder, "nvidia-cublas-cu12", "12.4.5.8", tag="py3-none-win_amd64")
    wheel_index.wheel(folder, "nvidia-nccl-cu12", "2.21.5", tag=LINUX)
    wheel_index.sdist(folder, "nvidia-nccl-cu12", "0.0.1.dev5")  # the placeholder
    return ["--no-index", "--find-links", str(folder)]


@pytest.fixture
def frozen(index, tmp_path):
    """What ``uv pip freeze`` says of an environment on Linux with torch."""
    pytest.importorskip("uv")
    environment = tmp_path / "environment"
    wheel_index.uv("venv", "--quiet", "--python", sys.executable, environment)
    platform = ["--python-platform", "x86_64-manylinux2014"]
    wheel_index.uv("pip", "install", "--quiet", "--python", environment, *platform, *index, "torch")
    return wheel_index.uv("pip", "freeze", "--quiet", "--python", environment)


def resolve(index, requirements, *options):
    """The names and versions that uv comes to, each with its marker."""
    arguments = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", *options]
    return wheel_index.uv(*arguments, *index, "-", stdin=requirements).split("\n")[:-1]


def download_for_windows(index, requirements, folder):
    (folder / "requirements.txt").write_text(requirements)
    arguments = [*index, "--no-deps", "--platform", "win_amd64", "--dest", folder / "got"]
    return wheel_index.pip("download", *arguments, "-r", folder / "requirements.txt")


def pins(lines):
    return [line.partition(";")[0].strip() for line in lines]


@pytest.mark.reproduces("nccl-not-on-windows")
def test_pip_for_windows(index, frozen, tmp_path):
    with act():
        download_for_windows(index, frozen, tmp_path)


@pytest.mark.reproduces("nccl-not-on-windows")
def test_uv_for_windows(index, frozen):
    with act():
        resolve(index, frozen, "--python-platform", "windows")


@pytest.mark.reproduces("nccl-not-on-windows")
@pytest.mark.needs("windows")
def test_pip_on_windows(index, tmp_path):
    with act():
        arguments = [*index, "--no-deps", "--dest", tmp_path / "got"]
        wheel_index.pip("download", *arguments, "nvidia-nccl-cu12==2.21.5")


@pytest.mark.guards("nccl-not-on-windows")
@pytest.mark.needs("uv")
@pytest.mark.parametrize("marked_by", ["hand", "uv"])
def test_one_file_resolves_on_both_systems(index, frozen, marked_by):
    with act():
        if marked_by == "hand":
            lines = [line + FOR_LINUX if "nccl" in line else line for line in frozen.splitlines()]
        else:
            lines = resolve(index, "torch==2.5.1", "--universal")
        on_linux = resolve(index, "\n".join(lines), "--python-platform", "linux")
        on_windows = resolve(index, "\n".join(lines), "--python-platform", "windows")
        assert pins(on_linux) == pins(frozen.splitlines())
        assert {"torch==2.5.1", "filelock==3.16.1"} <= {*pins(on_windows)} <= {*pins(on_linux)}
        assert "nvidia-nccl-cu12==2.21.5" not in pins(on_windows)
