"""Source distributions hold paths which, behind the folder they are unpacked to, are longer than the system allows."""

from __future__ import annotations

import os
import shutil
import tarfile

import pytest

from pytest_rlregress.fixtures import wheel_index

# Characters of a path with its terminating null: what Linux allows is what CPU machines can show.
LIMIT = 260 if os.name == "nt" else 4096

PREFIX = r"C:\Users\user\AppData\Local\Temp\pip-install-6m8ldwzk\flash-attn_ee9d06a9559c4196892f883a9336e953"
GEMM = "batched_gemm_add_relu_gemm_add"
DOCUMENTED = (
    f"csrc/composable_kernel/library/src/tensor_operation_instance/gpu/{GEMM}/"
    f"device_{GEMM}_xdl_cshuffle_f16_f16_f16_f16_gmk_gnk_gno_gmo_instance.cpp"
)


def path_of(length):
    """A relative path of so many characters, in folders no longer than a name may be."""
    folders, rest = divmod(length - 1, 200)
    return "/".join([*["f" * 199] * folders, "n" * (rest + 1)])


def pip_install(folder, paths):
    """Let pip unpack an sdist of these paths."""
    sdist = wheel_index.sdist(folder, "flash-attn", "2.7.0", paths)
    wheel_index.pip("install", "--no-index", "--no-deps", "--no-build-isolation", "--target", folder / "lib", sdist)


def refused(sdist, prefix):
    """The paths of an sdist that this system refuses to unpack to a folder in place of the sdist's own."""
    paths = []
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            path = f"{prefix}/{member.name.partition('/')[2]}"
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                archive.makefile(member, path)
            except OSError:
                paths.append(path)
    return paths


@pytest.mark.reproduces("flash-attn-long-path")
def test_pip_unpacks_beyond_the_limit(tmp_path):
    pip_install(tmp_path, [path_of(LIMIT)])


@pytest.mark.reproduces("flash-attn-long-path")
@pytest.mark.needs("windows")
def test_pip_unpacks_the_documented_path(tmp_path, monkeypatch):
    temporary = tmp_path / "t" * max(1, len(PREFIX) - len(str(tmp_path)))
    temporary.mkdir()
    monkeypatch.setenv("TEMP", str(temporary))
    monkeypatch.setenv("TMP", str(temporary))
    pip_install(tmp_path, [DOCUMENTED])


@pytest.mark.guards("flash-attn-long-path")
def test_the_documented_path_is_found(tmp_path, subject):
    sdist = wheel_index.sdist(tmp_path, "flash-attn", "2.7.0", ["setup.py", DOCUMENTED])
    assert subject(sdist, PREFIX) == [f"{PREFIX}/{DOCUMENTED}"]
    assert subject(sdist, r"C:\t") == []


@pytest.mark.guards("flash-attn-long-path")
def test_what_the_system_refuses_is_found(tmp_path, subject):
    prefix = str(tmp_path / "unpacked")
    around = range(LIMIT - 3, LIMIT + 3)
    sdist = wheel_index.sdist(
        tmp_path, "flash-attn", "2.7.0", ["setup.py", *(path_of(length - len(prefix) - 1) for length in around)]
    )
    found = subject(sdist, prefix, LIMIT)
    try:
        assert set(refused(sdist, prefix)) <= set(found)
    finally:
        shutil.rmtree(prefix)
    assert [len(path) for path in found] == [LIMIT + 2, LIMIT + 1, LIMIT]


@pytest.mark.guards("flash-attn-long-path")
def test_the_limit_counts_the_terminating_null(tmp_path, subject):
    around = [path_of(length - len(PREFIX) - 1) for length in (258, 259, 260, 261)]
    sdist = wheel_index.sdist(tmp_path, "flash-attn", "2.7.0", around)
    assert [len(path) for path in subject(sdist, PREFIX)] == [261, 260]
