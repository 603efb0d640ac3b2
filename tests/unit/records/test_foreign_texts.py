"""Texts, numbers and files that others made: metadata, records, lines of a job's log, locks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlregress.commands.run import results
from pytest_rlregress.commands.run.cluster import Job
from pytest_rlregress.commands.run.job import MARK, file_packet, packet
from pytest_rlregress.stack import installed, locks
from pytest_rlregress.stack.locks import LockError
from pytest_rlregress.util import files, text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(), inside, max_size=3),
    max_leaves=8,
)
COMMIT = "e9e2b6f4496a7c58fc376f4840bfa62000e78834"


# -- metadata of packages, and locks


class Package(metadata.Distribution):
    """A distribution whose files say what a test wants."""

    def __init__(self, **files):
        self.files_of = files

    def read_text(self, filename):
        found = self.files_of.get(filename.partition(".")[0])
        return found.decode() if isinstance(found, bytes) else found

    def locate_file(self, path):
        return path


def line(origin):
    return locks._line("Odd", "1.0", Package(direct_url=origin))


@pytest.mark.parametrize(
    "origin",
    ["{broken", "[]", "null", "5", '{"dir_info": null}', '{"url": 5}', '{"vcs_info": {}}', b"\xff", "[" * 9999],
)
def test_odd_direct_url_counts_as_none(origin):
    assert line(origin) == "odd==1.0"


@given(JSON)
def test_direct_url_of_any_json_gives_one_line(value):
    found = line(json.dumps(value))
    assert "\n" not in found
    assert found.startswith(("odd", "-e "))


def test_line_has_no_credentials_of_a_url():
    url = "https://me:TOKEN@git.example.com/r.git"
    git = json.dumps({"url": url, "vcs_info": {"vcs": "git", "commit_id": COMMIT}})
    assert line(git) == f"odd @ git+https://git.example.com/r.git@{COMMIT}"
    assert "TOKEN" not in line(json.dumps({"url": "https://me:p@ss:TOKEN@x.org/a.whl"}))
    assert line(json.dumps({"url": "ssh://git@x.org/r"})) == "odd @ ssh://git@x.org/r"


@pytest.mark.parametrize("head", [None, b"\xff\xfe", "", "Name:", "Version: 1"])
def test_package_of_unreadable_metadata_is_passed_over(head, monkeypatch):
    good = Package(METADATA="Name: good\nVersion: 1.0\n")
    monkeypatch.setattr(locks, "distributions", lambda: iter([Package(METADATA=head), good]))
    monkeypatch.setattr(installed, "distributions", lambda: iter([Package(METADATA=head), good]))
    assert locks.installed().lines == {"good": "good==1.0"}
    assert installed.versions()["good"] == "1.0"


def read_lock(folder, content):
    (folder / "lock.txt").write_text(content, encoding="utf-8")
    return locks.read(folder / "lock.txt").lines


def test_reads_an_editable_commit_as_pip_freeze_writes_it(tmp_path):
    freeze = f"-e git+https://me:TOKEN@github.com/me/t.git@{COMMIT}#egg=My_Trainer&subdirectory=src\nsix==1.16.0\n"
    assert read_lock(tmp_path, freeze) == {
        "my-trainer": f"my-trainer @ git+https://github.com/me/t.git@{COMMIT}#subdirectory=src",
        "six": "six==1.16.0",
    }


@pytest.mark.parametrize(
    "odd",
    [
        "--requirement other.txt",
        "-r other.txt",
        "--constraint c.txt",
        "-c c.txt",
        "--no-such-option",
        "-e git+https://x.org/r.git#egg=a",
        f"-e git+https://x.org/r.git@{COMMIT}",
    ],
)
def test_line_that_is_not_followed_is_an_error(tmp_path, odd):
    with pytest.raises(LockError, match="line 1: "):
        read_lock(tmp_path, f"{odd}\nsix==1.16.0\n")


@pytest.mark.parametrize("of_index", ["-i https://x", "--extra-index-url=https://x", "--pre", "-f w", "# \u2028 x"])
def test_line_about_indexes_is_passed_over(tmp_path, of_index):
    assert read_lock(tmp_path, f"{of_index}\r\nsix==1.16.0\r\n") == {"six": "six==1.16.0"}


@given(st.text())
def test_lock_of_any_text_is_read_or_refused(content):
    with contextlib.suppress(LockError):
        locks.of_lines(locks.numbered_lines(content), "a", files.Path())


# -- lines of a job's log


def finish(folder, *lines):
    job = Job("cpu", {}, "id", submitted=1, status="SUCCEEDED", log="\n".join(lines))
    results.finish(job, folder, "logs")
    return job


ODD = [
    "5",
    "null",
    '["file"]',
    '{"file": 5}',
    '{"file": "b.json"}',
    '{"file": "b.json", "content": 5}',
    '{"exit": "x"}',
]


@pytest.mark.parametrize(
    "line", [*ODD, '{"exit": "x"}', '{"file": "../b.json"}', '{"seconds": []}', "[" * 9999, '"\\ud800"']
)
def test_odd_line_of_a_job_costs_no_record(tmp_path, line):
    end = packet(exit=0, seconds=1.0)
    job = finish(tmp_path, packet(node="n", harness="0"), MARK + line, file_packet("a.json", b"{}"), end)
    assert job.records == (str(tmp_path / "a.json"),)
    assert job.code == results.UNKNOWN


@given(JSON)
def test_line_of_a_job_of_any_json(tmp_path_factory, value):
    finish(tmp_path_factory.getbasetemp(), MARK + json.dumps(value), packet(exit=0, seconds=1.0))


def test_record_that_does_not_end_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_MOST_BYTES", 100)
    content = b"0" * 200
    job = finish(tmp_path, file_packet("a.json", content), packet(exit=0, seconds=1.0))
    assert "damaged on its way" in job.words
    assert not (tmp_path / "a.json").exists()
    assert hashlib.sha256(content).hexdigest()


# -- files and texts


def test_opens_regular_files_only(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert files.read_regular(tmp_path / "link") == b"x"
    for other in ("pipe", ".", "none"):
        with pytest.raises(OSError, match=r"regular|directory|No such"):
            files.read_regular(tmp_path / other)


@given(st.text())
def test_clean_lines_move_no_cursor(found):
    cleaned = text.clean_lines(found)
    assert not {*cleaned} & {"\x1b", "\r", "\b", "\x9b", "\u202e", "\u2028"}
    assert text.clean_lines(cleaned) == cleaned
    assert cleaned.count("\n") == found.count("\n")


def test_clean_lines_keep_colours_and_emojis_where_they_may():
    red = "\x1b[31mno\x1b[0m 👩‍🔬 é\u3000ü\t\n"
    assert text.clean_lines(red, colours=True) == red
    assert text.clean_lines(red) == red.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert "\x1b" not in text.clean_lines("\x1b]0;title\x07", colours=True)


@given(st.text())
def test_markdown_of_others_is_words_or_code(found):
    """What is left of it without code spans are plain words: no heading, mention, link or tag."""
    import re

    rest = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", text.quoted_around_code(found))
    assert not {*rest} & {*"#@<>[]*|`~!/\n"}


def test_markdown_of_others_keeps_its_code():
    assert text.quoted_around_code("1 test failed: `a::b`, 2 more.") == "1 test failed: `a::b`, 2 more."


@given(st.text(alphabet=st.characters()) | st.from_regex(r"(\\ud83d|\\ude00|a)*", fullmatch=True))
def test_messages_of_a_child_can_be_encoded(found):
    for document in (json.dumps([found]), f'["{found}"]'):
        try:
            json.loads(document)
        except ValueError:
            continue
        text.load_encodable(document.encode("utf-8", "surrogatepass"))[0].encode()


@given(st.text())
def test_shows_any_text_on_any_terminal(found):
    import io

    for encoding in ("ascii", "latin-1", "utf-8"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding, "strict")
        text.show(stream, found)
