"""A released sdist is fetched once, from where pip takes packages, and only if it is the file that was meant."""

from __future__ import annotations

import functools
import hashlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pytest_rlregress.fixtures.released_sdist import released_sdist

NAME = "flash_attn-2.8.3.post2.tar.gz"
CONTENT = b"as it was released"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index with one project, configured for pip, beside an empty cache; its requests, as they come."""
    (tmp_path / "www/simple/flash-attn").mkdir(parents=True)
    (tmp_path / "www/files").mkdir()
    (tmp_path / "www/files" / NAME).write_bytes(CONTENT)
    links = [f'<a href="../../files/{name}#sha256=0">{name}</a>' for name in (f"x_{NAME}", NAME)]
    (tmp_path / "www/simple/flash-attn/index.html").write_text("\n".join(links))
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format, *arguments):
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "www")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield asked
    server.shutdown()
    server.server_close()


def test_it_is_fetched_once(index):
    assert released_sdist(NAME, SHA256).read_bytes() == CONTENT
    assert index == ["/simple/flash-attn/", f"/files/{NAME}"]
    assert released_sdist(NAME, SHA256).read_bytes() == CONTENT
    assert len(index) == 2


def test_a_damaged_copy_is_fetched_again(index):
    released_sdist(NAME, SHA256).write_bytes(CONTENT[:5])
    assert released_sdist(NAME, SHA256).read_bytes() == CONTENT


def test_a_folder_of_links_is_enough(index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "www/files"))
    assert released_sdist(NAME, SHA256).read_bytes() == CONTENT
    assert not index


def test_another_file_of_that_name_is_refused(index):
    with pytest.raises(pytest.skip.Exception, match="another file of that name"):
        released_sdist(NAME, "0" * 64)


def test_without_a_network_it_is_said(index, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(pytest.skip.Exception, match=rf"{NAME} cannot be fetched: http://127.0.0.1:9") as skipped:
        released_sdist(NAME, SHA256)
    assert "secret" not in str(skipped.value)


def test_it_has_to_come_in_time(index):
    with pytest.raises(pytest.skip.Exception, match="did not come in time"):
        released_sdist(NAME, SHA256, seconds=0)
