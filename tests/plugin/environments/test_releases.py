"""The releases between two ends, as the real uv finds them on an index."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.environment import Release, Releases
from pytest_rlregress.environments.uv import Installer
from pytest_rlregress.scenarios.dependencies.wheel_index import sdist, wheel

NO_WHEEL = f"cp27-cp27m-{sys.platform}_x86_64"


@pytest.fixture
def ask(own_uv, monkeypatch):
    """Ask uv about an index, and about one more."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def ask(index_url, *, more="", offline=False):
        settings = {"UV_DEFAULT_INDEX": index_url, "UV_INDEX": more, "UV_INDEX_STRATEGY": "unsafe-best-match"}
        return Releases(Installer(settings, offline))

    return ask


@pytest.fixture
def releases(ask, tmp_path):
    """An index with a release that is yanked, one without a wheel for here, a pre-release and builds with a label."""
    page = tmp_path / "index/app"
    page.mkdir(parents=True)
    versions = ("1.0", "1.1", "1.2rc1", "1.3", "1.4+cpu", "1.4+cu128", "1.5", "1.5+cpu", "1.6+cpu")
    files = [wheel(page, "app", version) for version in versions]
    files += [
        wheel(page, "app", "1.2", tag=NO_WHEEL),
        sdist(page, "app", "1.2"),
        wheel(page, "app", "1.7", tag=NO_WHEEL),
    ]
    yanked = {files[1]: 'data-yanked="breaks saving"'}
    links = (f'<a href="{file.name.replace("+", "%2B")}" {yanked.get(file, "")}>{file.name}</a>' for file in files)
    (page / "index.html").write_text("\n".join(links))
    return ask(page.parent.as_uri())


@pytest.mark.parametrize(
    ("good", "bad", "pre", "expected"),
    [
        ("1.0", "1.3", False, "1.0 1.3"),
        ("1.3", "1.0", False, "1.3 1.0"),
        ("v1.0.0", "1.3", False, "1.0 1.3"),
        ("1.0", "1.3", True, "1.0 1.2rc1 1.3"),
        ("1.1", "1.3", False, "1.1 1.3"),
        ("1.3", "1.2rc1", False, "1.3 1.2rc1"),
        ("1.3", "1.6", False, "1.3 1.4 1.5 1.6"),
        ("1.6+cpu", "1.3", False, "1.6+cpu 1.5 1.4 1.3"),
        ("1.4+cu128", "1.6", False, "1.4+cu128 1.5 1.6"),
    ],
)
def test_candidates_go_from_the_good_end_to_the_bad_end(releases, good, bad, pre, expected):
    assert [one.version for one in releases.list_between("app", good, bad, pre)] == expected.split()


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        (
            "1.3.post1",
            "1.0",
            r"the good end 1\.3\.post1 cannot be installed here: .*Newest that can be installed here: 1\.6\+cpu",
        ),
        (
            "1.0",
            "9",
            r"the bad end 9 cannot be installed here: .*no version of app==9.*Newest that can be .*: 1\.6\+cpu",
        ),
        ("1.2", "1.3", r"the good end 1\.2 cannot be installed here: .*no .*wheel"),
        ("1.0", "1.00", r"the good end and the bad end are the same release, 1\.0"),
        ("1.0", "newest", r"the bad end isn't a version: 'newest'"),
    ],
)
def test_refuses_an_end_that_cannot_be_installed(releases, good, bad, says):
    with pytest.raises(RequestError, match=says) as problem:
        releases.list_between("app", good, bad, pre=False)
    assert "\n" not in str(problem.value)


def test_names_left_out_releases_with_the_reason(releases):
    left_out = dict(releases.list_left_out("app", ["1.0", "1.3"], pre=False))
    assert left_out.keys() == {"1.1", "1.2"}
    assert left_out["1.1"] == "yanked"
    assert "no wheels" in left_out["1.2"] or "no usable wheels" in left_out["1.2"]
    assert releases.list_left_out("app", ["1.3", "1.4", "1.5"], pre=False) == []


def test_newest_release_is_the_newest_installable_one(releases):
    assert releases.find_newest("app", "", pre=False).version == "1.6+cpu"
    assert releases.find_newest("app", "<1.3", pre=False).version == "1.0"
    assert releases.find_newest("app", "<1.3", pre=True).version == "1.2rc1"
    with pytest.raises(RequestError, match=r"no release is >=1\.7: .*Newest that can be installed here: 1\.6\+cpu"):
        releases.find_newest("app", ">=1.7", pre=False)
    with pytest.raises(RequestError, match=r"apq was not found .*Check the name"):
        releases.find_newest("apq", "", pre=False)


# -- over http --------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve():
    """Serve the page of one package on loopback; its root, and the Authorization of each request."""
    with contextlib.ExitStack() as stack:

        def serve(package, page):
            seen = []

            class Handler(BaseHTTPRequestHandler):
                timeout = 10

                def do_GET(self):
                    seen.append(self.headers.get("Authorization"))
                    body = json.dumps(page).encode() if self.path == f"/simple/{package}/" else b""
                    self.send_response(200 if body else 404)
                    self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

                def log_message(self, *_):
                    pass

            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(server.shutdown)
            return server.server_port, seen

        yield serve


def test_release_has_its_upload_day_and_repeated_questions_use_the_cache(ask, serve):
    names = {f"app-{version}-py3-none-any.whl": f"2025-03-0{version[0]}T23:59:59Z" for version in ("1.0", "2.0", "3.0")}
    files = [
        {"filename": name, "url": name, "hashes": {"sha256": "0" * 64}, "upload-time": time}
        for name, time in names.items()
    ]
    port, seen = serve("app", {"meta": {"api-version": "1.1"}, "name": "app", "files": files})
    releases = ask(f"http://me:hunter2@127.0.0.1:{port}/simple")
    with contextlib.suppress(RequestError):  # the wheels themselves are not there
        releases.find_exact("app", "version", "3.0")
    asked = len(seen)
    expected = [Release("1.0", "2025-03-01"), Release("2.0", "2025-03-02"), Release("3.0", "2025-03-03")]
    assert releases.list_between("app", "1.0", "3.0", pre=False) == expected
    assert "Basic bWU6aHVudGVyMg==" in seen
    assert len(seen) == asked
    again = ask(f"http://me:hunter2@127.0.0.1:{port}/simple", offline=True)
    assert again.list_between("app", "1.0", "3.0", pre=False) == expected


def test_takes_the_upload_day_from_the_index_that_gives_it(ask, serve, tmp_path):
    page = tmp_path / "mirror/app"
    page.mkdir(parents=True)
    name = wheel(page, "app", "1.0").name
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    file = {"filename": name, "url": name, "hashes": {"sha256": "0" * 64}, "upload-time": "2025-03-01T23:59:59Z"}
    port, _ = serve("app", {"meta": {"api-version": "1.1"}, "name": "app", "files": [file]})
    releases = ask(f"http://127.0.0.1:{port}/simple", more=page.parent.as_uri())
    assert releases.find("app==1.0") == Release("1.0", "2025-03-01")
    assert ask(page.parent.as_uri()).find("app==1.0") == Release("1.0")


def test_names_an_unreachable_index_without_credentials(ask):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listened to, so that nobody else can either
        releases = ask(f"http://me:hunter2@127.0.0.1:{taken.getsockname()[1]}/simple")
        with pytest.raises(RequestError, match=r"127\.0\.0\.1:\d+.*Check the network and the settings") as problem:
            releases.find_newest("app", "", pre=False)
    assert "hunter2" not in str(problem.value)
    assert "\n" not in str(problem.value)
