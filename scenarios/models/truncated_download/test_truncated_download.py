from contextlib import suppress
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.models.loopback_hub import Fault
from pytest_rlregress.scenarios.models.truncated_download import two_shards
from pytest_rlregress.scenarios.models.truncated_download.two_shards import (
    CUT,
    MODEL,
    download,
    half,
    load,
    put_fault,
    sha256,
)


@pytest.fixture
def hub(published, monkeypatch, tmp_path_factory):
    with two_shards.serving(monkeypatch, {MODEL: published}, tmp_path_factory.mktemp("cache")) as hub:
        yield hub


@pytest.mark.reproduces("truncated-download")
@pytest.mark.parametrize("fault", [Fault(after=1000), Fault(after=1000, silence=1.0)], ids=["cut", "silent"])
def test_connection_breaks(hub, tmp_path, monkeypatch, fault):
    put_fault(hub, fault, monkeypatch)
    with act():
        download(hub, tmp_path)


@pytest.mark.reproduces("truncated-download")
@pytest.mark.parametrize("fill", [b"", b"\0"], ids=["half", "zeros-to-the-end"])
def test_half_a_shard_is_served(hub, published, tmp_path, fill):
    hub.faults[CUT] = Fault(body=half(published / CUT, fill))
    with act():
        content = (download(hub, tmp_path) / CUT).read_bytes()
    said, is_now = sha256((published / CUT).read_bytes()), sha256(content)
    if said != is_now:
        silent(f"the client took {len(content)} bytes with SHA-256 {is_now} for those with {said}")


@pytest.mark.reproduces("truncated-download")
def test_one_of_two_shards_is_loaded(hub, tmp_path):
    hub.faults[CUT] = Fault(after=1000)
    with suppress(Exception):  # what a script without set -e does
        download(hub, tmp_path)
    with act():
        load(tmp_path)


@pytest.mark.reproduces("truncated-download")
@pytest.mark.parametrize("length", [None, 100, 3], ids=["half", "in-the-header", "in-its-length"])
def test_part_of_a_shard_is_loaded(hub, tmp_path, length):
    from huggingface_hub import snapshot_download

    cached = [snapshot_download(MODEL, endpoint=hub.endpoint, cache_dir=tmp_path)]
    part = half(Path(cached[0], CUT))[:length]
    Path(cached[0], CUT).resolve().write_bytes(part)  # a full disk, or a cache copied while it was written
    cached.append(snapshot_download(MODEL, endpoint=hub.endpoint, cache_dir=tmp_path))
    with act():
        load(cached[1])
