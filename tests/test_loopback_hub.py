"""The hub on loopback, asked by the real client."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_rlregress.fixtures import loopback_hub
from pytest_rlregress.fixtures.loopback_hub import Fault

FILE = "model.safetensors"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", loopback_hub.NO_PROXY)
    (tmp_path / "served" / "sub").mkdir(parents=True)
    (tmp_path / "served" / FILE).write_bytes(CONTENT)
    (tmp_path / "served" / "sub" / "config.json").write_text("{}")
    (tmp_path / "rows" / "data").mkdir(parents=True)
    (tmp_path / "rows" / "data" / "train.parquet").write_bytes(CONTENT)
    with loopback_hub.start({"owner/model": tmp_path / "served"}, datasets={"owner/rows": tmp_path / "rows"}) as hub:
        yield hub


def test_a_download_is_what_the_hub_says(hub, tmp_path):
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.endpoint)
    api.snapshot_download("owner/model", local_dir=tmp_path / "here")
    assert (tmp_path / "here" / FILE).read_bytes() == CONTENT
    verified = api.verify_repo_checksums("owner/model", local_dir=tmp_path / "here")  # the client's own arithmetic
    assert (verified.checked_count, verified.mismatches, verified.missing_paths) == (2, [], [])


def test_a_large_file_is_on_another_host(hub):
    """The hub says what it is, the storage gives it; a token for the one is refused by the other, as S3 does."""
    import urllib.error
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args):
            return None

    def ask(address, *handlers, **headers):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)
        try:
            return opener.open(urllib.request.Request(address, headers=headers), timeout=5)
        except urllib.error.HTTPError as error:
            return error

    answer = ask(f"{hub.endpoint}/owner/model/resolve/main/{FILE}", Stay)
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert (answer.status, answer.headers["X-Linked-Size"], answer.headers["X-Linked-Etag"]) == (
        302,
        str(len(CONTENT)),
        f'"{digest}"',
    )
    location = answer.headers["Location"]
    assert location.startswith("http://127.0.0.2:")
    assert ask(location).read() == CONTENT
    assert ask(location, Authorization="Bearer hf_loopback").status == 400
    assert ask(location.partition("?")[0]).status == 403


def test_a_token_stays_with_the_hub(hub, tmp_path):
    from huggingface_hub import HfApi

    file = HfApi(endpoint=hub.endpoint, token="hf_loopback").hf_hub_download("owner/model", FILE, local_dir=tmp_path)
    assert Path(file).read_bytes() == CONTENT


def test_a_dataset_is_a_file_system(hub):
    from huggingface_hub import HfFileSystem

    files = HfFileSystem(endpoint=hub.endpoint)
    root = "datasets/owner/rows"
    assert files.find(root) == [f"{root}/data/train.parquet"]
    assert files.find(f"{root}@main/data") == [f"{root}@main/data/train.parquet"]
    assert files.info(f"{root}/data")["type"] == "directory"
    assert files.info(f"{root}/data/train.parquet")["size"] == len(CONTENT)
    assert files.cat(f"{root}/data/train.parquet") == CONTENT
    for nothing in (f"{root}/data/test.parquet", "datasets/owner/columns", f"{root}@v2"):
        with pytest.raises(FileNotFoundError):
            files.info(nothing)


def test_a_cut_connection_is_resumed_where_it_was(hub, tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    hub.faults[FILE] = Fault(after=4500, times=1)
    HfApi(endpoint=hub.endpoint).hf_hub_download("owner/model", FILE, local_dir=tmp_path)
    assert [first for file, first in hub.downloads if file == FILE] == [0, 4000]
    assert (tmp_path / FILE).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("model", "revision", "file", "error"),
    [
        ("owner/other", "main", FILE, "RepositoryNotFoundError"),
        ("owner/model", "v2", FILE, "RevisionNotFoundError"),
        ("owner/model", "main", "pytorch_model.bin", "RemoteEntryNotFoundError"),
    ],
)
def test_refusals_are_the_hubs(hub, tmp_path, model, revision, file, error):
    from huggingface_hub import HfApi

    with pytest.raises(OSError, match="Not Found") as refused:
        HfApi(endpoint=hub.endpoint).hf_hub_download(model, file, revision=revision, local_dir=tmp_path)
    assert type(refused.value).__name__ == error


def test_a_process_finds_it_by_its_environment(hub):
    ask = "from huggingface_hub import HfApi; print([one.id for one in HfApi().list_models(author='owner')])"
    command = [sys.executable, "-c", ask]
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["['owner/model']"]


def test_it_stops_while_a_client_waits(hub, tmp_path):
    import socket

    with loopback_hub.start({"owner/model": tmp_path / "served"}) as other:
        client = socket.create_connection(("127.0.0.1", int(other.endpoint.rpartition(":")[2])), timeout=5)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    client.close()


@pytest.mark.parametrize("path", ["/outside", "/served/../outside", "/served/%2e%2e/outside"])
def test_no_other_file_of_this_user_is_served(hub, tmp_path, path):
    import urllib.error
    import urllib.request

    (tmp_path / "outside").write_text("a secret")
    address = f"{hub.storage}{tmp_path}{path}?name={FILE}&X-Amz-Signature={loopback_hub.SIGNATURE}"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address)
