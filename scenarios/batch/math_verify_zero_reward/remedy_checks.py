"""What the process that judges makes of math-verify's answers: another module stands in its place."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def in_its_place(tmp_path, monkeypatch):
    """Put a module of this text in the place of math-verify."""

    def put(text):
        (tmp_path / "math_verify.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "math_verify", raising=False)

    return put


@pytest.mark.parametrize("release", ["new", "old"])
def test_math_verify_raises(subject, in_its_place, tmp_path, capfd, release):
    """An exception isn't a wrong answer, though math-verify makes one of it unless told; nor is what it prints.

    One process judges all. It has no timeouts of math-verify's, and older releases cannot be told.
    """
    told = {"new": "raise_on_error=False, ", "old": ""}[release]
    in_its_place(f"""
from pathlib import Path

with Path(__file__).with_name("started").open("a") as file:
    file.write("once ")

def parse(text, {told}parsing_timeout=5):
    assert parsing_timeout is None
    print("parsing", text)
    if "odd" in text and {"raise_on_error" if told else True}:
        raise KeyError("an odd answer")
    return [text]

def verify(gold, target, {told}timeout_seconds=5):
    assert timeout_seconds is None
    return gold == target
""")
    judged = subject(["4", "odd", "5"], ["4", "4", "4"], 10.0)
    assert judged.scores == [1.0, None, 0.0]
    assert judged.errors.keys() == {1}
    assert "KeyError: 'an odd answer'" in judged.errors[1]
    assert (tmp_path / "started").read_text() == "once "
    assert capfd.readouterr() == ("", "")


def test_ended_before_it_was_asked(subject, in_its_place):
    """Here because it closes its input: each answer is asked of another process."""
    in_its_place("""
import os

def parse(text, **options):
    os.close(0)

verify = parse
""")
    judged = subject(["4", "4"], ["4", "4"], 60.0)
    assert judged.scores == [None, None]
    assert all("ended" in judged.errors[index] for index in (0, 1))


def test_math_verify_is_missing(subject, in_its_place):
    """Nothing is scored where there is nothing to score with, and it is said why."""
    in_its_place("raise ImportError('no math_verify here')")
    with pytest.raises(RuntimeError, match=r"did not start: no math_verify here"):
        subject(["4"], ["4"], 1.0)


@pytest.mark.parametrize("count", [0, 1])
def test_as_many_solutions_as_answers(subject, count):
    with pytest.raises(ValueError, match=rf"2.*{count}|{count}.*2"):
        subject(["$1$", "$2$"], ["$1$"] * count, 1.0)
