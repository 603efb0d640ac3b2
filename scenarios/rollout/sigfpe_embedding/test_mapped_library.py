"""The cuBLAS that a process has mapped, which is what counts, against the one that is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_rlregress.containment.post_mortem import find_copies
from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.rollout.sigfpe_embedding import acts
from pytest_rlregress.scenarios.rollout.sigfpe_embedding.test_products import CURED, GPU
from pytest_rlregress.stack import distributions
from pytest_rlregress.stack.lazy import torch

FAMILIES = ("libcublas", "libcublasLt")
#: With the copy's file as an argument it is loaded before torch is.
IMPORTS_TORCH = """
import ctypes, sys
from pathlib import Path
for name in sys.argv[1:]:
    ctypes.CDLL(name)
import torch
print(Path("/proc/self/maps").read_text())
"""


def installed_files():
    """Return the libraries of the installed cuBLAS, by their real paths."""
    if torch.version.cuda is None:
        pytest.skip(f"needs a torch that is built for CUDA, this is {torch.__version__}")
    wheels = [one for one in distributions() if is_cublas(one.metadata["Name"] or "")]
    if not wheels:
        pytest.skip("needs a wheel of cuBLAS: nothing says which file a system's should be")
    [wheel] = wheels
    if Version(wheel.version) < CURED:
        pytest.skip(f"needs the remedy, nvidia-cublas-cu12 {CURED} or later, not {wheel.version}")
    files = {Path(str(wheel.locate_file(file))).resolve() for file in wheel.files or []}
    return {file for file in files if file.name.startswith(FAMILIES)}


def is_cublas(distribution):
    return canonicalize_name(distribution) in ("nvidia-cublas", "nvidia-cublas-cu12")


def mapped_files(maps):
    """Return the files of cuBLAS in a /proc/PID/maps, and the versions of libcublasLt."""
    copies = {key: paths for key, paths in find_copies(maps).items() if key[0] in FAMILIES}
    for family, version, folder in copies:
        print(family, version or "(version unknown)", folder)
    versions = {version for family, version, _ in copies if family == "libcublasLt"}
    return {path.resolve() for paths in copies.values() for path in paths}, versions


def maps_of_torch(*loaded, **environment):
    """Return the maps of a process that imports torch, after the libraries ``loaded``."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_TORCH, *map(str, loaded)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_installed(mapped, versions, installed):
    assert mapped, "torch is built for CUDA, and no cuBLAS is mapped"
    others = sorted(map(str, mapped - installed))
    assert not others, f"not of the installed wheel: {others}"
    cured = all(version and Version(version) >= CURED for version in versions)
    assert cured, f"before {CURED}: {versions}"


@pytest.fixture
def copy(tmp_path):
    """A copy of the installed libcublasLt, 300 MB and more, such as a CUDA's folder has."""
    [original] = [file for file in installed_files() if file.name.startswith("libcublasLt")]
    copied = tmp_path / original.name
    shutil.copyfile(original, copied)
    yield copied
    copied.unlink()


@GPU
@pytest.mark.isolated
@pytest.mark.guards("sigfpe-embedding")
@pytest.mark.needs("torch")
def test_mapped_after_a_product():
    installed = installed_files()
    product = acts.PRODUCTS["8x1024x4096-linear"]
    with act():
        acts.report_sum("product", acts.multiply(product, acts.draw_hidden(product, acts.DEVICE)))
        mapped, versions = mapped_files(Path("/proc/self/maps").read_text())
    check_installed(mapped, versions, installed)


@pytest.mark.guards("sigfpe-embedding")
@pytest.mark.needs("torch")
def test_mapped_with_torch():
    installed = installed_files()
    with act():
        mapped, versions = mapped_files(maps_of_torch())
    check_installed(mapped, versions, installed)


@pytest.mark.guards("sigfpe-embedding")
@pytest.mark.needs("torch")
def test_copy_first_on_the_path(copy):
    """PyPI's torch finds its own by RPATH, before LD_LIBRARY_PATH; another build may not."""
    installed = installed_files()
    with act():
        mapped, _ = mapped_files(maps_of_torch(LD_LIBRARY_PATH=str(copy.parent)))
    assert mapped, "torch is built for CUDA, and no cuBLAS is mapped"
    others = mapped - installed
    assert others <= {copy.resolve()}, "one is neither the wheel's nor first on the path"


@pytest.mark.guards("sigfpe-embedding")
@pytest.mark.needs("torch")
def test_copy_loaded_before_torch_is_named(copy):
    installed = installed_files()
    with act():
        mapped, _ = mapped_files(maps_of_torch(copy))
    assert mapped - installed == {copy.resolve()}, "the copy is mapped, whatever the metadata says"
