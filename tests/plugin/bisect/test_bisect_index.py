"""The releases between two ends."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from packaging import tags

from pytest_rlregress.environments.index_settings import IndexProblem, IndexSettings
from pytest_rlregress.environments.releases import Release, find_yanked, list_releases, select_candidates
from pytest_rlregress.fixtures.wheel_index import sdist, wheel

pytest.importorskip("pypi_simple")
HTML, JSON = "text/html", "application/vnd.pypi.simple.v1+json"


@pytest.fixture
def serve(monkeypatch):
    """Serve pages, by path (content type and text, or a status), on loopback; the root, and the requests as seen."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with contextlib.ExitStack() as stack:

        def serve(pages):
            seen = []

            class Handler(BaseHTTPRequestHandler):
                timeout = 10

                def do_GET(self):
                    seen.append((self.path, self.headers.get("Authorization")))
                    page = pages.get(self.path, 404)
                    status, kind, body = (page, HTML, "") if isinstance(page, int) else (200, *page)
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(body.encode())))
                    self.end_headers()
                    self.wfile.write(body.encode())

                def log_message(self, *_):
                    pass

            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}", seen

        yield serve


def links(*files, **attributes):
    """An HTML page of these files; attributes by the version they are for, as ``v1_0="data-yanked"``."""
    more = {file: attributes.get(f"v{file.split('-')[1].replace('.', '_')}", "") for file in files}
    return HTML, "\n".join(f'<a href="../../files/{file}#sha256=0" {more[file]}>{file}</a>' for file in files)


def wheels(*versions):
    return [f"app-{version}-py3-none-any.whl" for version in versions]


def found(settings, tmp_path, package="app", offline=False):
    return list_releases(package, settings, tmp_path / "cache", offline)


def versions(candidates):
    return [candidate.version for candidate in candidates]


def test_a_folder_of_distributions_says_which_releases_cannot_be_installed_here(tmp_path):
    here = next(tags.sys_tags())
    wheel(tmp_path, "App", "1.10")
    wheel(tmp_path, "app", "1.9.0rc1")
    sdist(tmp_path, "app", "1.2")
    wheel(tmp_path, "app", "1.3", tag=f"cp27-cp27m-{here.platform}")
    wheel(tmp_path, "app", "1.4", tag="cp311-cp311-win_amd64")
    wheel(tmp_path, "app", "1.5", tag=str(here))
    sdist(tmp_path, "app", "1.5")
    wheel(tmp_path, "app_extra", "9.0")
    (tmp_path / "app-7.txt").touch()
    python = f"CPython {sys.version_info[0]}.{sys.version_info[1]} on {here.platform}"
    assert found(IndexSettings(None, find_links=(str(tmp_path),)), tmp_path) == [
        Release("1.2", untestable=f"no wheel for {python} (only an sdist)"),
        Release("1.3", untestable=f"no wheel for {python} (only cp27)"),
        Release("1.4", untestable=f"no wheel for {python} (only win_amd64)"),
        Release("1.5"),
        Release("1.9.0rc1", prerelease=True),
        Release("1.10"),
    ]


def test_a_page_says_what_was_taken_back_and_which_python_is_needed_and_the_json_beside_it_when(serve, tmp_path):
    page = links(
        *wheels("1.0", "2.0", "3.0", "4.0"),
        v2_0='data-yanked="breaks saving"',
        v3_0='data-yanked=""',
        v4_0='data-requires-python="&gt;=3.99"',
    )
    days = [("1.0", "2024-05-01T10:00:00"), ("2.0", "2024-06-02T10:00:00")]
    beside = {version: [{"filename": wheels(version)[0], "upload_time": time}] for version, time in days}
    root, seen = serve({"/simple/app/": page, "/pypi/app/json": ("application/json", json.dumps({"releases": beside}))})
    assert found(IndexSettings(f"{root}/simple/"), tmp_path, "App") == [
        Release("1.0", "2024-05-01"),
        Release("2.0", "2024-06-02", yanked="breaks saving"),
        Release("3.0", yanked="no reason given"),
        Release("4.0", untestable="needs Python >=3.99"),
    ]
    assert [path for path, _ in seen] == ["/simple/app/", "/pypi/app/json"]


@pytest.mark.parametrize("beside", [404, ("application/json", "[1]"), (HTML, "sign in")], ids=["none", "odd", "html"])
def test_no_dates_are_no_error(serve, tmp_path, beside):
    root, seen = serve({"/simple/app/": links(*wheels("1.0")), "/pypi/app/json": beside})
    assert found(IndexSettings(f"{root}/simple"), tmp_path) == [Release("1.0")]
    assert len(seen) == 2


def test_a_json_page_has_its_own_dates(serve, tmp_path):
    file = {"url": "x/", "hashes": {}, "upload-time": "2025-03-04T23:59:59.5Z", "yanked": "wrong file"}
    files = [{**file, "filename": name, "url": f"x/{name}"} for name in (*wheels("1.0"), "app-1.0.tar.gz")]
    files[1] |= {"upload-time": "2025-03-03T00:00:00Z", "yanked": False}
    page = json.dumps({"meta": {"api-version": "1.0"}, "name": "app", "files": files})
    root, seen = serve({"/simple/app/": (JSON, page)})
    (release,) = found(IndexSettings(f"{root}/simple"), tmp_path)
    # What is left of the release is an sdist; its first file makes the date.
    assert (release.date, release.yanked) == ("2025-03-03", None)
    assert "only an sdist" in release.untestable
    assert [path for path, _ in seen] == ["/simple/app/"]


def test_all_indexes_folders_and_flat_pages_are_merged(serve, tmp_path):
    folder, local = tmp_path / "links", tmp_path / "index/app"
    folder.mkdir()
    local.mkdir(parents=True)
    wheel(folder, "app", "4.0+cpu")
    (local / "index.html").write_text(links(*wheels("3.0"))[1])
    root, _ = serve(
        {"/simple/app/": links(*wheels("1.0")), "/flat.html": links(*wheels("2.0"), "app_b-7-py3-none-any.whl")}
    )
    settings = IndexSettings(f"{root}/simple", (local.parent.as_uri(),), (str(folder), f"{root}/flat.html"))
    assert versions(found(settings, tmp_path)) == ["1.0", "2.0", "3.0", "4.0+cpu"]
    first = IndexSettings(f"{root}/simple", (str(local.parent),), (str(folder),), first_match=True)
    assert versions(found(first, tmp_path)) == ["3.0", "4.0+cpu"]
    after_none = IndexSettings(f"{root}/simple", (tmp_path.as_uri(),), first_match=True)
    assert versions(found(after_none, tmp_path)) == ["1.0"]


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (404, r"^app: not on any index\. Asked: \S+/links \(No such .*\), http://\S+/simple \(404 Not Found\)\. Check"),
        (403, r"\(403 Forbidden\)\. Check the name"),
        (links("app_b-1.0-py3-none-any.whl"), r"/simple \(none\)\. Check the name"),
        (503, r"^app: http://\S+/simple \(from PIP_INDEX_URL\) answered 503 Service Unavailable\. Try again later\.$"),
        (("image/png", ""), r"\(from PIP_INDEX_URL\) is no package index: .*image/png"),
        ((JSON, "{}"), r"\(from PIP_INDEX_URL\) is no package index: "),
    ],
    ids=["unknown", "refused", "others", "overloaded", "image", "odd"],
)
def test_an_index_without_the_package_is_not_one_that_fails(serve, tmp_path, page, says):
    root, _ = serve({"/simple/app/": page})
    url = f"{root.replace('//', '//me:hunter2@')}/simple"
    settings = IndexSettings(url, find_links=(str(tmp_path / "links"),), origins={url: "PIP_INDEX_URL"})
    with pytest.raises(IndexProblem, match=says) as problem:
        found(settings, tmp_path)
    assert "hunter2" not in f"{problem.value}{settings!r}"
    assert "\n" not in str(problem.value)


def test_credentials_go_to_the_index_and_nowhere_else(serve, tmp_path):
    root, seen = serve({"/simple/app/": links(*wheels("1.0"))})
    online = found(IndexSettings(f"{root.replace('//', '//me:hunter2@')}/simple"), tmp_path)
    assert [sent for _, sent in seen] == ["Basic bWU6aHVudGVyMg=="] * 2
    (kept,) = (tmp_path / "cache").iterdir()
    assert "app" in kept.read_text()
    assert "hunter2" not in kept.read_text()
    renewed = IndexSettings(f"{root.replace('//', '//me:hunter3@')}/simple")
    assert found(renewed, tmp_path, offline=True) == online


def test_an_index_that_cannot_be_reached(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listened to, so that nobody else can either
        url = f"http://me:hunter 2@127.0.0.1:{taken.getsockname()[1]}/simple"
        with pytest.raises(IndexProblem) as problem:
            found(IndexSettings(url, origins={url: "pip.conf"}), tmp_path)
    assert re.fullmatch(
        r"app: http://127\.0\.0\.1:\d+/simple \(from pip\.conf\) cannot be reached: "
        r".*\[Errno \d+\] Connection refused\. Check the network and the settings, or take --no-network, .*",
        str(problem.value),
    )
    assert not (tmp_path / "cache").exists()


def test_without_network_what_was_answered_before_is_read(serve, tmp_path):
    root, seen = serve({"/simple/app/": links(*wheels("1.0", "2.0"), v1_0="data-yanked")})
    settings = IndexSettings(f"{root}/simple", origins={f"{root}/simple": "pip.conf"})
    with pytest.raises(
        IndexProblem, match=r"^app: not on any index. Asked: http://\S+ \(from pip.conf\) \(no answer is kept: run once"
    ):
        found(settings, tmp_path, offline=True)
    wheel(tmp_path, "app", "3.0")
    settings = replace(settings, find_links=(str(tmp_path),))
    assert versions(found(settings, tmp_path, offline=True)) == ["3.0"]
    online = found(settings, tmp_path)
    asked = len(seen)
    assert versions(online) == ["1.0", "2.0", "3.0"]
    assert found(settings, tmp_path, offline=True) == online
    assert len(seen) == asked
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text(kept.read_text()[:-9])  # as of a disk that was full
    assert versions(found(settings, tmp_path, offline=True)) == ["3.0"]


def test_an_answer_that_cannot_be_kept(serve, tmp_path):
    root, _ = serve({"/simple/app/": links(*wheels("1.0"))})
    (tmp_path / "cache").touch()
    with pytest.raises(IndexProblem, match=r"cache/app-\w+\.json: what the index answered cannot be kept: "):
        found(IndexSettings(f"{root}/simple"), tmp_path)


def test_the_reader_of_pages_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypi_simple", None)
    with pytest.raises(IndexProblem, match=r'pip install "pytest-rlregress\[bisect\]"'):
        found(IndexSettings("http://127.0.0.1:1/simple"), tmp_path)


def test_nothing_heavy_is_imported_before_an_index_is_asked():
    module = "pytest_rlregress.environments.releases"
    code = f"import sys, {module}; print({{'requests', 'pypi_simple', 'bs4'}} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60).stdout == "set()\n"
    )


LINE = [
    Release("1.0"),
    Release("1.1", yanked="broken"),
    Release("1.2rc1", prerelease=True),
    Release("1.2", untestable="no wheel"),
    *map(Release, ("1.3", "1.4+cpu", "1.4+cu128", "1.5", "1.5+cpu", "1.6+cpu", "1.7", "1.7+cpu")),
    Release("1.8.dev1+cpu", prerelease=True),
]


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [
        ("1.0", "1.3", "1.0 1.2 1.3"),
        ("1.3", "1.0", "1.3 1.2 1.0"),
        ("1.0.0", "v1.3", "1.0 1.2 1.3"),
        ("1.1", "1.3", "1.1 1.2 1.3"),
        ("1.3", "1.2rc1", "1.3 1.2 1.2rc1"),
        ("1.3", "1.6", "1.3 1.4+cpu 1.5+cpu 1.6+cpu"),
        ("1.3", "1.7", "1.3 1.4+cu128 1.5 1.6+cpu 1.7"),
        ("1.7+cpu", "1.3", "1.7+cpu 1.6+cpu 1.5+cpu 1.4+cpu 1.3"),
        ("1.4+cu128", "1.6", "1.4+cu128 1.5+cpu 1.6+cpu"),
        ("1.4+cu128", "1.4+cpu", "1.4+cu128 1.4+cpu"),
        ("1.5", "1.5+cpu", "1.5 1.5+cpu"),
        ("1.7+cpu", "1.8.dev1", "1.7+cpu 1.8.dev1+cpu"),
    ],
)
def test_candidates_go_from_the_good_end_to_the_bad_end(good, bad, expected):
    assert versions(select_candidates(LINE, good, bad, pre=False)) == expected.split()


def test_pre_releases_are_candidates_when_asked_for_and_yanked_ones_never():
    assert versions(select_candidates(LINE, "1.0", "1.3", pre=True)) == ["1.0", "1.2rc1", "1.2", "1.3"]
    assert [(one.version, one.yanked) for one in find_yanked(LINE, "1.3", "1.0")] == [("1.1", "broken")]
    assert find_yanked(LINE, "1.1", "1.3") == []


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        (
            "1.3.post1",
            "1.0",
            r"the good end 1\.3\.post1 is not on the index\. Closest: 1\.3 and 1\.4\+cpu; newest: 1\.8",
        ),
        ("1.0", "9", r"the bad end 9 is not on the index\. Closest: 1\.8\.dev1\+cpu; newest: "),
        ("0.1", "1.0", r"Closest: 1\.0; newest: "),
        ("1.3+cpu", "1.0", r"the good end 1\.3\+cpu is not on the index\. Closest: 1\.3 and "),
        ("1.0", "1.4", r"the bad end 1\.4 has several builds, say which: 1\.4\+cpu, 1\.4\+cu128"),
        ("1.0", "1.00", r"the good end and the bad end are the same release, 1\.0$"),
        ("1.6", "1.6+cpu", r"the same release, 1\.6\+cpu$"),
        ("1.0", "newest", r"the bad end is no version: 'newest'"),
        ("1.2", "1.3", r"the good end 1\.2 cannot be installed here: no wheel$"),
    ],
)
def test_ends_that_are_none(good, bad, says):
    with pytest.raises(IndexProblem, match=says):
        select_candidates(LINE, good, bad, pre=False)
