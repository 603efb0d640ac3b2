"""The connection breaks in one of two shards: what the hub client says, what it keeps, and what loads afterwards."""

from __future__ import annotations

import filecmp
import hashlib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_rlregress.fixtures import loopback_hub
from pytest_rlregress.fixtures.loopback_hub import Fault

MODEL = "tiny/two-shards"
WHOLE, CUT = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def published(tiny_qwen, tmp_path_factory):
    """The folder that the hub serves: the tiny Qwen in two shards and their index."""
    folder = tmp_path_factory.mktemp("hub")
    tiny_qwen.model().save_pretrained(folder, max_shard_size="1MB")
    assert (folder / CUT).is_file()
    return folder


@pytest.fixture
def hub(published, monkeypatch):
    import huggingface_hub.file_download

    # The client waits a second before each of its five retries, and ten for an answer.
    impatient = SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr(huggingface_hub.file_download, "time", impatient)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with loopback_hub.start({MODEL: published}) as hub:
        yield hub


def half(path, fill=b""):
    """Half a file, up to its size with ``fill``."""
    content = path.read_bytes()
    return content[: len(content) // 2] + fill * (len(content) - len(content) // 2)


def download(hub, folder):
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(MODEL, endpoint=hub.endpoint, local_dir=folder))


def load(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.reproduces("truncated-download")
@pytest.mark.parametrize("fault", [Fault(after=1000), Fault(after=1000, silence=0.5)], ids=["cut", "silent"])
def test_connection_breaks(hub, tmp_path, fault):
    hub.faults[CUT] = fault
    download(hub, tmp_path)


@pytest.mark.reproduces("truncated-download")
@pytest.mark.parametrize("fill", [b"", b"\0"], ids=["half", "zeros-to-the-end"])
def test_half_a_shard_is_served(hub, published, tmp_path, fill):
    hub.faults[CUT] = Fault(body=half(published / CUT, fill))
    content = (download(hub, tmp_path) / CUT).read_bytes()
    said, is_now = (hashlib.sha256(one).hexdigest() for one in ((published / CUT).read_bytes(), content))
    assert said == is_now, f"silent: the client took {len(content)} bytes with SHA-256 {is_now} for those with {said}"


@pytest.mark.reproduces("truncated-download")
def test_one_of_two_shards_is_loaded(hub, tmp_path):
    hub.faults[CUT] = Fault(after=1000)
    with suppress(Exception):  # what a script without set -e does
        download(hub, tmp_path)
    load(tmp_path)


@pytest.mark.reproduces("truncated-download")
@pytest.mark.parametrize("length", [None, 100, 3], ids=["half", "in-the-header", "in-its-length"])
def test_part_of_a_shard_is_loaded(hub, tmp_path, length):
    from huggingface_hub import snapshot_download

    cached = [snapshot_download(MODEL, endpoint=hub.endpoint, cache_dir=tmp_path)]
    part = half(Path(cached[0], CUT))[:length]
    Path(cached[0], CUT).resolve().write_bytes(part)  # a full disk, or a cache copied while it was written
    cached.append(snapshot_download(MODEL, endpoint=hub.endpoint, cache_dir=tmp_path))
    load(cached[1])


def check_complete(folder, published):
    """Every file as published, and the model loads."""
    for path in published.iterdir():
        assert filecmp.cmp(folder / path.name, path, shallow=False), f"{path.name} is not as published"
    load(folder)


@pytest.mark.guards("truncated-download")
@pytest.mark.parametrize(
    "fault",
    [Fault(after=1000, times=8), Fault(body=b"", times=1), Fault(after=1000, silence=0.5, times=2)],
    ids=["cut", "empty", "silent"],
)
def test_goes_on_until_complete(hub, subject, published, tmp_path, fault):
    hub.faults[CUT] = fault
    attempts = 9  # huggingface-hub 0.x gives up at every cut, 1.x at every fifth
    check_complete(subject(MODEL, tmp_path, "main", hub.endpoint, attempts), published)
    fetched = [file for file, _ in hub.downloads]
    assert fetched.count(WHOLE) == 1, f"a shard that was right was fetched {fetched.count(WHOLE)} times"


@pytest.mark.guards("truncated-download")
@pytest.mark.parametrize("fill", [b"", b"\0"], ids=["half", "zeros-to-the-end"])
def test_half_a_shard_is_not_taken_for_whole(hub, subject, published, tmp_path, fill):
    hub.faults[CUT] = Fault(body=half(published / CUT, fill), times=1)
    check_complete(subject(MODEL, tmp_path, "main", hub.endpoint, 3), published)


@pytest.mark.guards("truncated-download")
@pytest.mark.parametrize("fill", [b"", b"\0"], ids=["half", "zeros-to-the-end"])
def test_half_a_shard_left_behind_is_replaced(hub, subject, published, tmp_path, fill):
    download(hub, tmp_path)
    (tmp_path / CUT).write_bytes(half(published / CUT, fill))
    check_complete(subject(MODEL, tmp_path, "main", hub.endpoint, 3), published)


@pytest.mark.guards("truncated-download")
@pytest.mark.parametrize("fill", [None, b"", b"\0"], ids=["cut", "half", "zeros-to-the-end"])
def test_gives_up_and_leaves_nothing_to_load(hub, subject, published, tmp_path, fill):
    hub.faults[CUT] = Fault(after=1000) if fill is None else Fault(body=half(published / CUT, fill))
    with pytest.raises(RuntimeError, match=CUT):
        subject(MODEL, tmp_path, "main", hub.endpoint, 2)
    assert not (tmp_path / CUT).exists(), f"{(tmp_path / CUT).stat().st_size} bytes of a shard are left to be loaded"
    assert filecmp.cmp(tmp_path / WHOLE, published / WHOLE, shallow=False)
