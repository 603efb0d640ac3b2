"""Requirements frozen on Linux name NCCL's wheel, of which there is none for Windows."""

from __future__ import annotations

import pytest

from pytest_rlregress.fixtures import wheel_index

NCCL = "nvidia-nccl-cu12==2.21.5"
LINUX = "manylinux2014_x86_64"
# What a freeze on Linux holds; of the first three there are wheels for Linux only.
FROZEN = [
    NCCL,
    "nvidia-cublas-cu12==12.4.5.8",
    "triton==3.1.0; python_version < '3.14'",
    "# for --hw=cpu",
    "nvidia-ml-py==12.560.30",
    "torch==2.5.1",
    "colorama==0.4.6; sys_platform == 'win32'",
]


@pytest.fixture
def index(tmp_path):
    wheel_index.sdist(tmp_path, "nvidia-nccl-cu12", "0.0.1.dev5")  # a placeholder, older than the wheels
    for requirement in FROZEN:
        name, _, version = requirement.partition(";")[0].partition("==")
        if version:
            tag = f"py3-none-{LINUX}" if requirement in FROZEN[:3] else "py3-none-any"
            wheel_index.wheel(tmp_path, name, version, tag=tag)
    return ["--no-index", "--find-links", str(tmp_path)]


def resolve(index, requirements, platform):
    """The names and versions that uv comes to for a platform."""
    arguments = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-platform", platform]
    said = wheel_index.uv(*arguments, *index, "-", stdin="\n".join(requirements))
    return [line.partition(" ;")[0] for line in said.splitlines()]


@pytest.mark.reproduces("nccl-not-on-windows")
def test_pip_for_windows(index, tmp_path):
    wheel_index.pip("download", *index, "--no-deps", "--platform", "win_amd64", "--dest", tmp_path / "got", NCCL)


@pytest.mark.reproduces("nccl-not-on-windows")
def test_uv_for_windows(index):
    resolve(index, [NCCL], "windows")


@pytest.mark.reproduces("nccl-not-on-windows")
@pytest.mark.needs("windows")
def test_pip_on_windows(index, tmp_path):
    wheel_index.pip("download", *index, "--no-deps", "--dest", tmp_path / "got", NCCL)


@pytest.mark.guards("nccl-not-on-windows")
def test_marked_for_windows(index, subject):
    marked = subject(FROZEN)
    assert resolve(index, marked, "windows") == ["colorama==0.4.6", "nvidia-ml-py==12.560.30", "torch==2.5.1"]


@pytest.mark.guards("nccl-not-on-windows")
def test_nothing_is_lost_on_linux(index, subject):
    marked = subject(FROZEN)
    frozen = resolve(index, FROZEN, "linux")
    assert NCCL in frozen
    assert resolve(index, marked, "linux") == frozen
    assert marked[3:] == FROZEN[3:], "lines of other packages and comments stay as they are"


@pytest.mark.guards("nccl-not-on-windows")
def test_a_marker_that_was_there_still_holds(subject):
    from packaging.requirements import Requirement

    [line] = subject(["nvidia-nccl-cu12==2.21.5; platform_machine == 'x86_64' or python_version < '3.9'"])
    marker = Requirement(line).marker
    assert marker
    here = {"python_version": "3.11", "platform_machine": "x86_64", "sys_platform": "linux"}
    assert marker.evaluate(here)
    assert not marker.evaluate({**here, "sys_platform": "win32"})
    assert not marker.evaluate({**here, "platform_machine": "aarch64"})
