import os

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.dependencies import wheel_index

VERSION = "2.7.4.post1"
GEMM = "batched_gemm_add_relu_gemm_add"
DOCUMENTED = (
    f"csrc/composable_kernel/library/src/tensor_operation_instance/gpu/{GEMM}/"
    f"device_{GEMM}_xdl_cshuffle_f16_f16_f16_f16_gmk_gnk_gno_gmo_instance.cpp"
)
PIPS_FOLDERS = len("/pip-install-6m8ldwzk/flash-attn_ee9d06a9559c4196892f883a9336e953/")
# Of a path with its terminating null: on Linux the system's limit takes the place of Windows'.
LIMIT = 260 if os.name == "nt" else 4096
SETUP = f"""from setuptools import setup

setup(name="flash-attn", version="{VERSION}", py_modules=["flash_attn"])
"""


@pytest.fixture
def links(tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    return folder


@pytest.fixture
def sdist(links):
    """flash-attn's source distribution: its documented path, and a build of a moment."""
    pytest.importorskip("setuptools")
    files = {"setup.py": SETUP, "flash_attn.py": "", DOCUMENTED: ""}
    return wheel_index.sdist(links, "flash-attn", VERSION, files)


@pytest.fixture
def set_temporary(monkeypatch):
    """Put programs' temporary files into a folder, which is made."""

    def set_temporary(folder):
        folder.mkdir(parents=True)
        for variable in ("TMPDIR", "TEMP", "TMP"):
            monkeypatch.setenv(variable, str(folder))

    return set_temporary


def long_folder(below):
    """A folder below which pip's copy of the documented path is just beyond the limit."""
    length = LIMIT + 10 - len(DOCUMENTED) - PIPS_FOLDERS
    folder = below
    while len(str(folder)) + 202 < length:  # a name has at most 255
        folder /= "f" * 199
    return folder / ("n" * max(1, length - len(str(folder)) - 1))


def install(links, target):
    arguments = [
        "--no-index",
        "--no-cache-dir",
        "--no-deps",
        "--no-build-isolation",
        "--find-links",
        links,
    ]
    return wheel_index.pip("install", *arguments, "--target", target, "flash-attn")


@pytest.mark.reproduces("flash-attn-long-path")
@pytest.mark.needs("linux")
def test_pip_unpacks_beyond_the_limit(sdist, set_temporary, links, tmp_path):
    set_temporary(long_folder(tmp_path))
    with act():
        install(links, tmp_path / "lib")


@pytest.mark.reproduces("flash-attn-long-path", fidelity="real")
@pytest.mark.needs("windows")
def test_pip_unpacks_beyond_the_limit_of_windows(sdist, set_temporary, links, tmp_path):
    set_temporary(long_folder(tmp_path))
    with act():
        install(links, tmp_path / "lib")


@pytest.mark.guards("flash-attn-long-path")
def test_a_short_folder_takes_the_sdist(sdist, set_temporary, links, tmp_path):
    set_temporary(tmp_path / "t")
    with act():
        install(links, tmp_path / "lib")
        assert (tmp_path / "lib" / "flash_attn.py").exists()


@pytest.mark.guards("flash-attn-long-path")
def test_a_wheel_is_installed_from_the_long_folder(set_temporary, links, tmp_path):
    wheel_index.wheel(links, "flash-attn", VERSION, files={"flash_attn.py": ""})
    set_temporary(long_folder(tmp_path))
    with act():
        install(links, tmp_path / "lib")
        assert (tmp_path / "lib" / "flash_attn.py").exists()
