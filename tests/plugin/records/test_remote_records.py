"""Records on shared storage: a folder that fsspec reaches by a URL, and at night a real S3 server on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from histories import Event, make
from patience import PATIENCE

from pytest_rlregress import cli
from pytest_rlregress.records.reader import TRUST, read
from pytest_rlregress.records.remote import RemoteError, RemoteRecords

TEST = "def test_passes(): pass"
PLUGINS = ("-p", "pytest_rlregress.plugin", "-p", "xdist")


@pytest.fixture
def here(pytester, monkeypatch, tmp_path):
    """Run pytest on one of several machines, each with a cache of its own: ``here("a", url, *arguments)``."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_it=TEST)

    def here(machine, url, *arguments):
        monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / machine))
        return pytester.runpytest_subprocess(*PLUGINS, f"--rl-record-dir={url}", *arguments)

    return here


def _copies(folder, url):
    return folder / "records" / quote(url, safe="")


def test_a_record_is_copied_and_compared_with_the_last_one_of_another_machine(here, tmp_path, capsys):
    shared = tmp_path / "shared"
    shared.mkdir()
    url = shared.as_uri()
    first = here("a", url)
    [record] = shared.glob("*.json")
    first.stdout.fnmatch_lines([f"record: {url}/{record.name}, here {_copies(tmp_path / 'a', url) / record.name}"])
    second = here("b", url)
    second.stdout.fnmatch_lines([f"record: {url}/*", "Since the last record (*): nothing got worse."])
    assert len(list(shared.glob("*.json"))) == 2
    assert cli.main(["report", url, "--json", "-"]) == 0
    assert '"state": "complete"' in capsys.readouterr().out


def test_a_record_that_is_untrusted_on_one_machine_is_so_on_another(tmp_path, monkeypatch, capsys):
    shared = tmp_path / "shared"
    nights = make(shared, nights=14, platforms=("cpu",), tests=3, events=[Event("measure", 13, "grad_norm", "9")])
    url = shared.as_uri()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "a"))
    assert cli.main(["report", url, "--gate", "--trust", nights[-1].name, "--untrust", nights[2].name]) == 0
    assert (shared / TRUST).read_text() == f"untrusted {nights[2].name}\ntrusted {nights[-1].name}\n"
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "b"))
    capsys.readouterr()
    for words in ([], ["outside"]):  # once more with a file of the same size
        assert cli.main(["report", url, "--json", "-"]) == 0
        told = json.loads(capsys.readouterr().out)["changes"]
        assert [one["now"]["word"] for one in told if one["number"]] == words
        (shared / TRUST).write_text(f"untrusted {nights[2].name}\ntrusted {nights[-2].name}\n")


def test_rejects_a_missing_folder_before_the_run(here, tmp_path):
    url = (tmp_path / "none").as_uri()
    result = here("a", url)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: command line --rl-record-dir: no record can be written there: {url}: FileNotFoundError: *"]
    )


def test_next_run_copies_a_record_that_could_not_be_copied(here, pytester, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    url = shared.as_uri()
    pytester.makepyfile(test_it=f"import shutil\ndef test_removes(): shutil.rmtree({str(shared)!r})")
    result = here("a", url)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    [kept] = (_copies(tmp_path / "a", url) / "unsent").iterdir()
    result.stdout.fnmatch_lines([f"FAILED: the record could not be copied: {url}: *. It is kept in {kept}, *"])
    assert read(kept).results.extra.state == "complete"
    shared.mkdir()
    pytester.makepyfile(test_it=TEST)
    assert here("a", url).ret == 0
    assert kept.name in {path.name for path in shared.glob("*.json")}
    assert len(list(shared.glob("*.json"))) == 2


def test_the_journal_of_a_killed_run_is_copied_by_the_next_run(here, pytester, tmp_path):
    url = tmp_path.as_uri()
    pytester.makepyfile(test_it="import os, signal\ndef test_dies(): os.kill(os.getpid(), signal.SIGKILL)")
    assert here("a", url).ret == -9
    pytester.makepyfile(test_it=TEST)
    assert here("a", url).ret == 0
    [journal] = tmp_path.glob("*.partial.jsonl")
    assert read(journal).results.extra.state == "killed"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://user:secret@bucket/nightly", "Allowed: a URL without a password"),
        ("unknown://x", "unknown://x: Protocol not known: unknown"),
    ],
)
def test_rejects_a_url_that_is_not_a_storage(here, url, why):
    result = here("a", url)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert why in result.stderr.str()


# -- a real S3 server ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """The address of moto's S3 server, which lives in an environment of its own: its botocore contradicts the lock."""
    pytest.importorskip("obstore")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    uv = Path(sys.executable).with_name("uv")
    command = [
        uv,
        "tool",
        "run",
        "--quiet",
        "--from",
        "moto[server]",
        "moto_server",
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    log = tmp_path_factory.mktemp("s3") / "log"
    with open(log, "w") as out, subprocess.Popen(command, stdout=out, stderr=out) as server:
        deadline = time.monotonic() + 300
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
        server.terminate()


@pytest.fixture
def bucket(s3, monkeypatch):
    """A new bucket: its URL. The client finds the server by its environment, as it finds Amazon's."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3}")
    name = f"bucket-{os.urandom(4).hex()}"
    _ask(s3, "PUT", name)
    return f"s3://{name}/nightly"


def _ask(s3, method, path):
    with urllib.request.urlopen(urllib.request.Request(f"http://{s3}/{path}", method=method)) as answer:
        return answer.read().decode()


@contextmanager
def _cut_off(s3, after):
    """A way to the server that ends each connection once so many bytes went to it: of a record, in its middle."""
    host, port = s3.split(":")
    door = socket.create_server(("127.0.0.1", 0))

    def copy(source, target, room):
        with suppress(OSError):
            while room > 0 and (piece := source.recv(min(room, 4096))):
                target.sendall(piece)
                room -= len(piece)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve():
        with suppress(OSError):
            while True:
                client, server = door.accept()[0], socket.create_connection((host, int(port)))
                threading.Thread(target=copy, args=[client, server, after], daemon=True).start()
                threading.Thread(target=copy, args=[server, client, 10**9], daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{door.getsockname()[1]}"
    door.shutdown(socket.SHUT_RDWR)
    door.close()


@pytest.mark.nightly
def test_s3_has_the_records_of_two_writers_at_once(here, bucket, pytester, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "a"))
    command = [sys.executable, "-m", "pytest", *PLUGINS, f"--rl-record-dir={bucket}", "test_it.py"]
    for process in [subprocess.Popen(command, cwd=pytester.path) for _ in range(2)]:
        assert process.wait(PATIENCE) == 0
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "b"))
    found = RemoteRecords(bucket).fetch_all()
    assert [read(path).results.extra.state for path in found] == ["complete"] * 2
    assert not list((_copies(tmp_path / "a", bucket) / "unsent").iterdir())
    assert cli.main(["report", bucket, "--markdown", "-"]) == 0
    assert "(2 runs: " in capsys.readouterr().out


@pytest.mark.nightly
def test_names_a_missing_s3_bucket(here, bucket, capsys):
    gone = bucket.replace("bucket-", "gone-")
    result = here("a", gone)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--rl-record-dir: no record can be written there: {gone}: " in result.stderr.str()
    assert "NoSuchBucket" in result.stderr.str()
    assert cli.main(["report", gone]) == 2
    assert gone in capsys.readouterr().err


@pytest.mark.nightly
def test_keeps_the_record_if_the_s3_bucket_is_deleted_during_the_run(here, bucket, s3, pytester, tmp_path):
    reset = f"urllib.request.Request('http://{s3}/moto-api/reset', method='POST')"
    pytester.makepyfile(test_it=f"import urllib.request\ndef test_removes(): urllib.request.urlopen({reset})")
    result = here("a", bucket)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    [kept] = (_copies(tmp_path / "a", bucket) / "unsent").iterdir()
    result.stdout.fnmatch_lines([f"FAILED: the record could not be copied: {bucket}: *NoSuchBucket*{kept}*"])
    _ask(s3, "PUT", bucket.split("/")[2])
    pytester.makepyfile(test_it=TEST)
    assert here("a", bucket).ret == 0
    assert kept.name in _ask(s3, "GET", f"{bucket.split('/')[2]}?list-type=2")


@pytest.mark.nightly
def test_s3_keeps_nothing_of_a_write_that_is_cut_off(here, bucket, s3, monkeypatch, tmp_path):
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "a"))
    records = RemoteRecords(bucket)
    assert here("a", bucket).ret == 0
    [whole] = records.copies.glob("*.json")
    again = records.unsent / f"again-{whole.name}"
    shutil.copy(whole, again)
    with _cut_off(s3, 4000) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way)
        with pytest.raises(RemoteError, match=bucket):
            records.end_run()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3}")
    assert again.exists()
    assert again.name not in _ask(s3, "GET", f"{bucket.split('/')[2]}?list-type=2")
    records.end_run()
    assert not again.exists()
    assert again.name in _ask(s3, "GET", f"{bucket.split('/')[2]}?list-type=2")
