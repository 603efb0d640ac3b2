"""Source distributions hold paths which, behind the folder they are unpacked to, are longer than the system allows."""

from __future__ import annotations

import os
import shutil
import tarfile

import pytest

from pytest_rlregress.fixtures import released_sdist, wheel_index

# Characters of a path with its terminating null: what Linux allows is what CPU machines can show.
LIMIT = 260 if os.name == "nt" else 4096

PREFIX = r"C:\Users\user\AppData\Local\Temp\pip-install-6m8ldwzk\flash-attn_ee9d06a9559c4196892f883a9336e953"
GEMM = "batched_gemm_add_relu_gemm_add"
DOCUMENTED = (
    f"csrc/composable_kernel/library/src/tensor_operation_instance/gpu/{GEMM}/"
    f"device_{GEMM}_xdl_cshuffle_f16_f16_f16_f16_gmk_gnk_gno_gmo_instance.cpp"
)

RELEASE = "flash_attn-2.8.3.post2.tar.gz"
SHA256 = "d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b"
LONGEST = 234  # characters of its longest path, without the archive's own folder


def path_of(length):
    """A relative path of so many characters, in folders no longer than a name may be."""
    folders, rest = divmod(length - 1, 200)
    return "/".join([*["f" * 199] * folders, "n" * (rest + 1)])


def folder_of(length, below):
    """A folder below another whose whole path has so many characters."""
    folder = below / path_of(length - len(str(below)) - 1)
    folder.mkdir(parents=True)
    return folder


def unpacked_by_pip(sdist, folder, temporary, monkeypatch):
    """Let pip take flash-attn from the folder of its sdist: it unpacks that below the folder of temporary files."""
    for variable in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(variable, str(temporary))
    monkeypatch.setenv("FLASH_ATTENTION_SKIP_CUDA_BUILD", "TRUE")  # where it gets so far as to run setup.py
    arguments = ["--no-index", "--find-links", sdist.parent, "--no-deps", "--no-build-isolation"]
    wheel_index.pip("install", "--dry-run", *arguments, "--target", folder / "lib", "flash-attn==2.8.3.post2")


def refused(sdist, prefix):
    """The paths of an sdist that this system refuses to make, in a folder in place of the sdist's own."""
    paths = []
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            path = f"{prefix}/{member.name.partition('/')[2]}"
            try:
                os.makedirs(path if member.isdir() else os.path.dirname(path), exist_ok=True)
                if member.isfile():
                    open(path, "xb").close()
            except OSError:
                paths.append(path)
    return paths


@pytest.mark.reproduces("flash-attn-long-path")
def test_pip_unpacks_beyond_the_limit(tmp_path, monkeypatch):
    sdist = released_sdist.released_sdist(RELEASE, SHA256)
    below_temporary = len("/pip-install-12345678/") + len(os.path.basename(PREFIX.replace("\\", "/"))) + 1
    temporary = folder_of(LIMIT + 10 - LONGEST - below_temporary, tmp_path)
    unpacked_by_pip(sdist, tmp_path, temporary, monkeypatch)


@pytest.mark.reproduces("flash-attn-long-path", fidelity="real")
@pytest.mark.needs("windows")
def test_pip_unpacks_the_documented_path(tmp_path, monkeypatch):
    sdist = released_sdist.released_sdist(RELEASE, SHA256)
    temporary = tmp_path / "t" * max(1, len(PREFIX) - len(str(tmp_path)))
    temporary.mkdir()
    unpacked_by_pip(sdist, tmp_path, temporary, monkeypatch)


@pytest.mark.guards("flash-attn-long-path")
def test_what_the_system_refuses_of_the_release_is_found(tmp_path, subject):
    sdist = released_sdist.released_sdist(RELEASE, SHA256)
    prefix = str(folder_of(LIMIT - 190, tmp_path))
    try:
        expected = refused(sdist, prefix)
    finally:
        shutil.rmtree(prefix)
    assert 0 < len(expected) < 7000
    assert sorted(subject(sdist, prefix, LIMIT)) == sorted(expected)


@pytest.mark.guards("flash-attn-long-path", fidelity="real")
def test_the_documented_path_of_the_release_is_found(subject):
    sdist = released_sdist.released_sdist(RELEASE, SHA256)
    found = subject(sdist, PREFIX)
    assert f"{PREFIX}/{DOCUMENTED}" in found
    lengths = [len(path) for path in found]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == len(PREFIX) + 1 + LONGEST
    assert subject(sdist, r"C:\t") == [], "a short TEMP is enough for it"


@pytest.mark.guards("flash-attn-long-path")
def test_the_documented_path_is_found(tmp_path, subject):
    sdist = wheel_index.sdist(tmp_path, "flash-attn", "2.7.0", ["setup.py", DOCUMENTED])
    assert subject(sdist, PREFIX) == [f"{PREFIX}/{DOCUMENTED}"]
    assert subject(str(sdist), r"C:\t") == []


@pytest.mark.guards("flash-attn-long-path")
def test_the_limit_counts_the_terminating_null(tmp_path, subject):
    around = [path_of(length - len(PREFIX) - 1) for length in (258, 259, 260, 261)]
    around[-1] = "a" + around[-1][1:]  # the longest is not the last by its name
    sdist = wheel_index.sdist(tmp_path, "flash-attn", "2.7.0", around)
    assert [len(path) for path in subject(sdist, PREFIX)] == [261, 260]
    assert [len(path) for path in subject(sdist, PREFIX, 261)] == [261]


@pytest.mark.guards("flash-attn-long-path")
def test_what_is_no_archive(tmp_path, subject):
    (tmp_path / "flash_attn-2.7.0.tar.gz").write_text("<html>Not Found</html>")
    with pytest.raises(tarfile.TarError):
        subject(tmp_path / "flash_attn-2.7.0.tar.gz", PREFIX)
