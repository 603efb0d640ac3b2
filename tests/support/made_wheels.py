"""Small wheels of trainers and engines, a folder of them, and a server that has them with or without ranges."""

from __future__ import annotations

import threading
import zipfile
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pytest_rlregress.commands.moved.index import Index
from pytest_rlregress.commands.moved.wheels import Releases
from pytest_rlregress.environments.uv import PackageSources


def make_wheel(folder, package, version, files, requires=(), tag="py3-none-any"):
    """Write a wheel with some files: path -> text."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package}-{version}-{tag}.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{package}-{version}.dist-info/METADATA", "\n".join([*lines, "", ""]))
    return path


def open_releases(tmp_path, *, indexes=(), links=(), offline=False):
    """Return what reads releases from there, with a cache of its own."""
    folder = tmp_path / "cache"
    return Releases(Index(PackageSources(tuple(indexes), tuple(map(str, links))), folder, offline=offline), folder)


@contextmanager
def serve(folder, *, ranges=True, breaks=False):
    """Serve a folder of wheels as an index; yields its URL and the list of what was asked for.

    ``breaks`` lets each download of a wheel end early.
    """
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Range")))
            parts = self.path.strip("/").split("/")
            if parts[0] == "simple":
                wheels = [one for one in sorted(folder.glob("*.whl")) if one.name.startswith(f"{parts[1]}-")]
                links = (f'<a href="/files/{one.name}#sha256={hash_file(one)}">x</a>' for one in wheels)
                self.answer(200 if wheels else 404, "".join(links).encode(), "text/html")
                return
            content = (folder / parts[1]).read_bytes()
            wanted = self.headers.get("Range")
            if not ranges or not wanted:
                self.answer(200, content)
                return
            first, last = wanted.removeprefix("bytes=").split("-")
            begin = int(first) if first else max(0, len(content) - int(last))
            end = min(int(last) + 1 if first and last else len(content), len(content))
            part = content[begin : end - 1 if breaks and first else end]
            self.answer(206, part, range=f"bytes {begin}-{end - 1}/{len(content)}")

        def answer(self, code, content, kind="application/octet-stream", range=""):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            if range:
                self.send_header("Content-Range", range)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple", asked
    finally:
        server.shutdown()
        server.server_close()


def hash_file(path):
    """Return a file's SHA-256."""
    return sha256(path.read_bytes()).hexdigest()


def serve_links(monkeypatch, tmp_path):
    """Have a folder be the only place that releases are read from, with a cache of its own; returns the folder."""
    folder = tmp_path / "links"
    for name in ("PIP_FIND_LINKS", "UV_INDEX", "UV_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "none").as_uri())
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "cache"))
    return folder
